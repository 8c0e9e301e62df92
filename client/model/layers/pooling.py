"""Pooling: the largest or the mean of windows, or of everything."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from client.errors import ModelError
from client.model.layers.base import Shape, require_positive
from client.model.layers.windowed import Pair, Window, Windowed


@dataclass(frozen=True)
class Pool(Windowed):
    """Windows of ``kernel_size`` moved by ``stride`` (by default the kernel's size)."""

    kernel_size: int | Pair
    stride: int | Pair | None = None
    padding: int | Pair = 0

    def __post_init__(self) -> None:
        require_positive(self, kernel_size=self.kernel_size, stride=self.stride)
        pads = self.both(self.padding, height=0)
        for pad, k in zip(pads, self.both(self.kernel_size), strict=True):
            if not 0 <= pad <= k // 2:
                raise ModelError(
                    f"{self.kind}: padding: must lie between 0 and half the kernel, "
                    f"found {self.padding}"
                )

    def window(self, x: Shape) -> Window:
        kernel, (top, left) = self.both(self.kernel_size), self.both(self.padding, height=0)
        stride = kernel if self.stride is None else self.both(self.stride)
        return Window(kernel, stride, pads=(top, top, left, left))

    def flops(self, x: Shape) -> int:
        return self.window(x).taps * prod(self.output_shape(x))


@dataclass(frozen=True)
class MaxPool2d(Pool):
    """Largest value of each window; padding counts as minus infinity."""

    kind: ClassVar[str] = "maxpool2d"


@dataclass(frozen=True)
class AvgPool2d(Pool):
    """Mean of each window; padded zeros count, as PyTorch's default does."""

    kind: ClassVar[str] = "avgpool2d"


@dataclass(frozen=True)
class MaxPool1d(Pool):
    """``MaxPool2d`` over a sequence (C, L)."""

    kind: ClassVar[str] = "maxpool1d"
    dims: ClassVar[Literal[1, 2]] = 1
    kernel_size: int
    stride: int | None = None
    padding: int = 0


@dataclass(frozen=True)
class AvgPool1d(Pool):
    """``AvgPool2d`` over a sequence (C, L)."""

    kind: ClassVar[str] = "avgpool1d"
    dims: ClassVar[Literal[1, 2]] = 1
    kernel_size: int
    stride: int | None = None
    padding: int = 0


@dataclass(frozen=True)
class GlobalPool(Windowed):
    """One window over everything: (C, H, W) or (C, L) -> (C,)."""

    def window(self, x: Shape) -> Window:
        _, height, width = self.image(x)
        return Window((height, width), (height, width))

    def output_shape(self, x: Shape) -> Shape:
        return (self.image(x)[0],)

    def flops(self, x: Shape) -> int:
        return prod(x)


@dataclass(frozen=True)
class GlobalAvgPool2d(GlobalPool):
    """Mean over height and width, as ``torch.nn.AdaptiveAvgPool2d(1)`` with a flatten."""

    kind: ClassVar[str] = "global_avgpool2d"


@dataclass(frozen=True)
class GlobalMaxPool2d(GlobalPool):
    """Largest value of height and width, as ``torch.nn.AdaptiveMaxPool2d(1)`` with a flatten."""

    kind: ClassVar[str] = "global_maxpool2d"


@dataclass(frozen=True)
class GlobalAvgPool1d(GlobalPool):
    """Mean over the length."""

    kind: ClassVar[str] = "global_avgpool1d"
    dims: ClassVar[Literal[1, 2]] = 1


@dataclass(frozen=True)
class GlobalMaxPool1d(GlobalPool):
    """Largest value of the length."""

    kind: ClassVar[str] = "global_maxpool1d"
    dims: ClassVar[Literal[1, 2]] = 1
