"""What every layer is, and what the families of layers share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from client.errors import ModelError

Shape = tuple[int, ...]


class ParamSpec(NamedTuple):
    """One tensor of a layer, a parameter or a buffer: suffix of its name, shape, how it begins.

    It begins as ``value`` everywhere, or drawn where there is no value: uniformly for its
    ``fan_in``, or, with ``normal``, from the standard normal distribution. A ``variance`` is never
    negative.
    """

    suffix: str
    shape: Shape
    fan_in: int = 1
    value: float | None = None
    normal: bool = False
    variance: bool = False


@dataclass(frozen=True)
class Layer:
    """Base: no parameters, output as input, one operation per element."""

    kind: ClassVar[str] = ""
    uses_batch: ClassVar[bool] = False
    """Whether, in training, an example's result depends on the others of its batch."""

    def output_shape(self, x: Shape) -> Shape:
        """Shape of the output for an input of shape ``x``; ModelError if it cannot be."""
        return x

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        """Parameter tensors for an input of shape ``x``."""
        return ()

    def buffers(self, x: Shape) -> tuple[ParamSpec, ...]:
        """Tensors that training carries along without a gradient, as running statistics."""
        return ()

    def flops(self, x: Shape) -> int:
        """Operations of the forward pass for one example; a multiply-add counts as two."""
        return prod(self.output_shape(x))


def require_positive(layer: Layer, **values: int | tuple[int, int] | None) -> None:
    for key, value in values.items():
        if value is not None and (value if isinstance(value, int) else min(value)) < 1:
            raise ModelError(f"{layer.kind}: {key}: must be at least 1, found {value}")
