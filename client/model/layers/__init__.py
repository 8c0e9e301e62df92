"""Layers: what each computes in shapes, parameters, operations; no arithmetic (backends do that).

Shapes are those of one example, without the batch axis: ``(features,)``, ``(channels, length)``,
``(channels, height, width)``, ``(steps,)`` of tokens or ``(steps, features)``. Names of layers,
attributes and parameters are PyTorch's, so that a model's state can be loaded into the same network
built with ``torch.nn`` and back.
"""

from __future__ import annotations

from client.model.layers.activation import (
    GELU,
    Dropout,
    Hardswish,
    LeakyReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Tanh,
)
from client.model.layers.base import Layer, ParamSpec, Shape
from client.model.layers.convolution import Conv, Conv1d, Conv2d
from client.model.layers.linear import Linear
from client.model.layers.norm import BatchNorm, BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm
from client.model.layers.pooling import (
    AvgPool1d,
    AvgPool2d,
    GlobalAvgPool1d,
    GlobalAvgPool2d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GlobalPool,
    MaxPool1d,
    MaxPool2d,
    Pool,
)
from client.model.layers.sequence import GRU, LSTM, Embedding, LastStep, Transpose
from client.model.layers.shape import Add, Concat, Flatten
from client.model.layers.windowed import Window, Windowed

__all__ = [
    "GELU",
    "GRU",
    "LAYERS",
    "LSTM",
    "Add",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Concat",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAvgPool1d",
    "GlobalAvgPool2d",
    "GlobalMaxPool1d",
    "GlobalMaxPool2d",
    "GlobalPool",
    "GroupNorm",
    "Hardswish",
    "LastStep",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "ParamSpec",
    "Pool",
    "ReLU",
    "ReLU6",
    "Shape",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "Transpose",
    "Window",
    "Windowed",
]

LAYERS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Linear,
        Conv1d,
        Conv2d,
        MaxPool1d,
        MaxPool2d,
        AvgPool1d,
        AvgPool2d,
        GlobalAvgPool1d,
        GlobalAvgPool2d,
        BatchNorm1d,
        BatchNorm2d,
        GroupNorm,
        LayerNorm,
        GlobalMaxPool1d,
        GlobalMaxPool2d,
        ReLU,
        ReLU6,
        LeakyReLU,
        GELU,
        SiLU,
        Hardswish,
        Sigmoid,
        Tanh,
        Flatten,
        Dropout,
        Embedding,
        LSTM,
        GRU,
        LastStep,
        Transpose,
    )
}
"""Layers that may be named in YAML by their ``type`` (residual and concat are built of them)."""
