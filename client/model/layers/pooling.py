"""Pooling: the largest or the mean of windows, or of everything."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer, Shape, image_shape, pair, require_positive


@dataclass(frozen=True)
class _Pool2d(Layer):
    """Windows of ``kernel_size`` moved by ``stride`` (by default the kernel's size)."""

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, int] = 0

    def __post_init__(self) -> None:
        require_positive(self, kernel_size=self.kernel_size, stride=self.stride)
        for pad, k in zip(pair(self.padding), pair(self.kernel_size), strict=True):
            if not 0 <= pad <= k // 2:
                raise ModelError(
                    f"{self.kind}: padding: must lie between 0 and half the kernel, "
                    f"found {self.padding}"
                )

    @property
    def strides(self) -> tuple[int, int]:
        """Step between windows, (rows, columns)."""
        return pair(self.kernel_size if self.stride is None else self.stride)

    def output_shape(self, x: Shape) -> Shape:
        channels, height, width = image_shape(self, x)
        (kh, kw), (sh, sw), (ph, pw) = pair(self.kernel_size), self.strides, pair(self.padding)
        oh, ow = (height + 2 * ph - kh) // sh + 1, (width + 2 * pw - kw) // sw + 1
        if oh < 1 or ow < 1:
            raise ModelError(f"{self.kind}: the window {kh}x{kw} is larger than its input {x}")
        return (channels, oh, ow)

    def flops(self, x: Shape) -> int:
        return prod(pair(self.kernel_size)) * prod(self.output_shape(x))


@dataclass(frozen=True)
class MaxPool2d(_Pool2d):
    """Largest value of each window; padding counts as minus infinity."""

    kind: ClassVar[str] = "maxpool2d"


@dataclass(frozen=True)
class AvgPool2d(_Pool2d):
    """Mean of each window; padded zeros count, as PyTorch's default does."""

    kind: ClassVar[str] = "avgpool2d"


@dataclass(frozen=True)
class GlobalAvgPool2d(Layer):
    """Mean over height and width: (C, H, W) -> (C,)."""

    kind: ClassVar[str] = "global_avgpool2d"

    def output_shape(self, x: Shape) -> Shape:
        return (image_shape(self, x)[0],)

    def flops(self, x: Shape) -> int:
        return prod(x)
