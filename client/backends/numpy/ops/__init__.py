"""Layers in numpy: which class computes which layer of client/model/layers.py.

To add a layer: write its ``Function`` in one of the files here and enter it below.
"""

from client.backends.numpy.ops.convolution import Conv2d
from client.backends.numpy.ops.elementwise import Add, Dropout, Flatten, ReLU
from client.backends.numpy.ops.function import Array, Function, Run, Tensors
from client.backends.numpy.ops.linear import Linear
from client.backends.numpy.ops.loss import softmax_cross_entropy
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
from client.backends.numpy.ops.optimizer import Sgd
from client.backends.numpy.ops.pooling import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from client.model import layers

FUNCTIONS: dict[type[layers.Layer], type[Function]] = {
    layers.Linear: Linear,
    layers.Conv2d: Conv2d,
    layers.MaxPool2d: MaxPool2d,
    layers.AvgPool2d: AvgPool2d,
    layers.GlobalAvgPool2d: GlobalAvgPool2d,
    layers.BatchNorm1d: BatchNorm,
    layers.BatchNorm2d: BatchNorm,
    layers.GroupNorm: GroupNorm,
    layers.LayerNorm: LayerNorm,
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
}

__all__ = ["FUNCTIONS", "Array", "Function", "Run", "Sgd", "Tensors", "softmax_cross_entropy"]
