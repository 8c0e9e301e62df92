"""Linear: every input with every output."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer, ParamSpec, Shape, require_positive


@dataclass(frozen=True)
class Linear(Layer):
    """y = x Wᵀ + b, with W of shape (out_features, in_features).

    x: (in_features,), or (steps, in_features), of which each step is multiplied by itself.
    """

    kind: ClassVar[str] = "linear"
    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(self, out_features=self.out_features)

    def output_shape(self, x: Shape) -> Shape:
        if len(x) > 2:
            raise ModelError(f"linear needs a flat input, found shape {x}: put a flatten before it")
        return (*x[:-1], self.out_features)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        weight = ParamSpec("weight", (self.out_features, x[-1]), x[-1])
        return (weight, ParamSpec("bias", (self.out_features,), x[-1])) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        return 2 * prod(x) * self.out_features
