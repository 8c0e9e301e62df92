"""Layers: what each computes in shapes, parameters, operations; no arithmetic (backends do that).

Shapes are those of one example, without the batch axis: ``(features,)`` or
``(channels, height, width)``. Names of layers, attributes and parameters are PyTorch's, so that
a model's state can be loaded into the same network built with ``torch.nn`` and back.
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
from client.model.layers.base import Layer, ParamSpec, Shape, pair
from client.model.layers.convolution import Conv2d
from client.model.layers.linear import Linear
from client.model.layers.norm import BatchNorm, BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm
from client.model.layers.pooling import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from client.model.layers.shape import Add, Flatten

__all__ = [
    "GELU",
    "LAYERS",
    "Add",
    "AvgPool2d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Flatten",
    "GlobalAvgPool2d",
    "GroupNorm",
    "Hardswish",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool2d",
    "ParamSpec",
    "ReLU",
    "ReLU6",
    "Shape",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "pair",
]

LAYERS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Linear,
        Conv2d,
        MaxPool2d,
        AvgPool2d,
        GlobalAvgPool2d,
        BatchNorm1d,
        BatchNorm2d,
        GroupNorm,
        LayerNorm,
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
    )
}
"""Layers that may be named in YAML by their ``type`` (a residual block is built of them)."""
