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


@dataclass(frozen=True)
class Concat(Layer):
    """Tensors one after the other along the channels: (C1, …), (C2, …), … -> (C1 + C2 + …, …).

    ``channels`` are those of the inputs. In YAML it is written with the layers of its branches.
    """

    kind: ClassVar[str] = "concat"
    channels: tuple[int, ...]

    def output_shape(self, x: Shape) -> Shape:
        return (sum(self.channels), *x[1:])

    def flops(self, x: Shape) -> int:
        return 0
