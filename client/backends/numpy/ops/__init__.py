"""Layers in numpy: which class computes which layer of client/model/layers.py.

To add a layer: write its ``Function`` in one of the files here and enter it below.
"""

from client.backends.numpy.ops.convolution import Conv
from client.backends.numpy.ops.elementwise import Add, Concat, Dropout, Flatten, ReLU
from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.backends.numpy.ops.linear import Linear
from client.backends.numpy.ops.loss import LOSS_FUNCTIONS
from client.backends.numpy.ops.nonlinear import (
    GELU,
    Hardswish,
    LeakyReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)
from client.backends.numpy.ops.norm import BatchNorm, GroupNorm, LayerNorm
from client.backends.numpy.ops.optimizer import OPTIMIZERS, Optimizer
from client.backends.numpy.ops.pooling import AvgPool, GlobalAvgPool, MaxPool
from client.backends.numpy.ops.recurrent import GRU, LSTM
from client.backends.numpy.ops.sequence import Embedding, LastStep, Transpose
from client.model import layers

FUNCTIONS: dict[type[layers.Layer], type[Function]] = {
    layers.Linear: Linear,
    layers.BatchNorm1d: BatchNorm,
    layers.BatchNorm2d: BatchNorm,
    layers.GroupNorm: GroupNorm,
    layers.LayerNorm: LayerNorm,
    layers.Conv1d: Conv,
    layers.Conv2d: Conv,
    layers.MaxPool1d: MaxPool,
    layers.MaxPool2d: MaxPool,
    layers.AvgPool1d: AvgPool,
    layers.AvgPool2d: AvgPool,
    layers.GlobalAvgPool1d: GlobalAvgPool,
    layers.GlobalAvgPool2d: GlobalAvgPool,
    layers.GlobalMaxPool1d: MaxPool,
    layers.GlobalMaxPool2d: MaxPool,
    layers.ReLU: ReLU,
    layers.ReLU6: ReLU6,
    layers.LeakyReLU: LeakyReLU,
    layers.GELU: GELU,
    layers.SiLU: SiLU,
    layers.Hardswish: Hardswish,
    layers.Sigmoid: Sigmoid,
    layers.Tanh: Tanh,
    layers.Flatten: Flatten,
    layers.Dropout: Dropout,
    layers.Add: Add,
    layers.Concat: Concat,
    layers.Embedding: Embedding,
    layers.LSTM: LSTM,
    layers.GRU: GRU,
    layers.LastStep: LastStep,
    layers.Transpose: Transpose,
}

__all__ = [
    "FUNCTIONS",
    "LOSS_FUNCTIONS",
    "OPTIMIZERS",
    "Array",
    "Function",
    "Optimizer",
    "Run",
    "Tensors",
]
