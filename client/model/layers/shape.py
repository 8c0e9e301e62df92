"""Layers that put tensors together or see them in another shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.model.layers.base import Layer, Shape


@dataclass(frozen=True)
class Flatten(Layer):
    """(C, H, W) -> (C·H·W,): the same numbers, seen as one axis."""

    kind: ClassVar[str] = "flatten"

    def output_shape(self, x: Shape) -> Shape:
        return (prod(x),)

    def flops(self, x: Shape) -> int:
        return 0


@dataclass(frozen=True)
class Add(Layer):
    """Sum of two tensors of one shape: the end of a residual block. Not written in YAML."""

    kind: ClassVar[str] = "add"
