"""What convolutions and pools share: windows over images (C, H, W) or sequences (C, L).

A sequence is an image of height 1, so that backends have one set of kernels for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from client.errors import ModelError
from client.model.layers.base import Layer, Shape

Pair = tuple[int, int]


class Window(NamedTuple):
    """Windows over an image: pairs are (rows, columns), pads (top, bottom, left, right)."""

    kernel: Pair
    stride: Pair
    dilation: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def reach(self) -> Pair:
        """Rows and columns from the first place of the kernel to its last."""
        return self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1)

    def output(self, height: int, width: int) -> Pair:
        """How many windows lie in a padded image: (rows, columns), below 1 where none does."""
        top, bottom, left, right = self.pads
        rows = (height + top + bottom - self.reach[0] - 1) // self.stride[0] + 1
        return rows, (width + left + right - self.reach[1] - 1) // self.stride[1] + 1


@dataclass(frozen=True)
class Windowed(Layer):
    """A layer whose kernel moves over the last ``dims`` axes of its input."""

    dims: ClassVar[Literal[1, 2]] = 2

    def image(self, x: Shape) -> tuple[int, int, int]:
        """An input's shape as (channels, height, width); ModelError if it is none."""
        if len(x) != self.dims + 1:
            axes = "channels, length" if self.dims == 1 else "channels, height, width"
            raise ModelError(f"{self.kind} needs an input of shape ({axes}), found {x}")
        return (x[0], 1, x[1]) if self.dims == 1 else (x[0], x[1], x[2])

    def window(self, x: Shape) -> Window:
        """The windows over an input of shape ``x``."""
        raise NotImplementedError

    def both(self, value: int | Pair, height: int = 1) -> Pair:
        """(rows, columns) of a setting; ``height`` is what it is along the height of a sequence."""
        if not isinstance(value, int):
            return value
        return (height, value) if self.dims == 1 else (value, value)

    def size(self, pair: Pair) -> str:
        """A size in a message: ``3`` for a sequence, ``3x3`` for an image."""
        return str(pair[1]) if self.dims == 1 else f"{pair[0]}x{pair[1]}"

    def channels_of(self, x: Shape) -> int:
        """Channels of the output."""
        return x[0]

    def output_shape(self, x: Shape) -> Shape:
        _, height, width = self.image(x)
        window = self.window(x)
        rows, columns = window.output(height, width)
        if rows < 1 or columns < 1:
            raise ModelError(
                f"{self.kind}: the kernel {self.size(window.kernel)} is larger than its padded "
                f"input {x}"
            )
        return (self.channels_of(x), *(rows, columns)[-self.dims :])
