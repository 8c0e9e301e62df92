"""Layers that change each element by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer


@dataclass(frozen=True)
class ReLU(Layer):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"


@dataclass(frozen=True)
class ReLU6(Layer):
    """min(max(x, 0), 6)."""

    kind: ClassVar[str] = "relu6"


@dataclass(frozen=True)
class LeakyReLU(Layer):
    """x where x > 0, else negative_slope·x."""

    kind: ClassVar[str] = "leaky_relu"
    negative_slope: float = 0.01


@dataclass(frozen=True)
class GELU(Layer):
    """x·Φ(x), Φ the distribution function of the normal distribution: exact, by erf."""

    kind: ClassVar[str] = "gelu"


@dataclass(frozen=True)
class SiLU(Layer):
    """x / (1 + exp(-x))."""

    kind: ClassVar[str] = "silu"


@dataclass(frozen=True)
class Hardswish(Layer):
    """x·min(max(x + 3, 0), 6) / 6."""

    kind: ClassVar[str] = "hardswish"


@dataclass(frozen=True)
class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    kind: ClassVar[str] = "sigmoid"


@dataclass(frozen=True)
class Tanh(Layer):
    """The hyperbolic tangent."""

    kind: ClassVar[str] = "tanh"


@dataclass(frozen=True)
class Dropout(Layer):
    """Zero each element with probability ``p`` in training and scale the rest by 1/(1-p)."""

    kind: ClassVar[str] = "dropout"
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ModelError(f"dropout: p: must lie in [0, 1), found {self.p}")
