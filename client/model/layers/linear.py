"""Linear: every input with every output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer, ParamSpec, Shape, require_positive


@dataclass(frozen=True)
class Linear(Layer):
    """y = x Wᵀ + b, with W of shape (out_features, in_features)."""

    kind: ClassVar[str] = "linear"
    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(self, out_features=self.out_features)

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 1:
            raise ModelError(f"linear needs a flat input, found shape {x}: put a flatten before it")
        return (self.out_features,)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        weight = ParamSpec("weight", (self.out_features, x[0]), x[0])
        return (weight, ParamSpec("bias", (self.out_features,), x[0])) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        return 2 * x[0] * self.out_features
