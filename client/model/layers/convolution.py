"""Convolution over images and over sequences."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from client.errors import ModelError, did_you_mean
from client.model.layers.base import ParamSpec, Shape, require_positive
from client.model.layers.windowed import Pair, Window, Windowed

Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Conv(Windowed):
    """Cross-correlation of (C, …) with weights (O, C/groups, …), as PyTorch's.

    Input and output channels fall into ``groups``, which have nothing to do with each other;
    with as many groups as input channels the convolution is called depthwise. ``padding`` is as
    each of the two says, or ``"valid"`` (none), or ``"same"`` (stride 1 only; where the total is
    odd the extra place goes to the end, as in PyTorch).
    """

    paddings: ClassVar[tuple[str, ...]] = ("same", "valid")
    out_channels: int
    kernel_size: int | Pair
    stride: int | Pair = 1
    padding: int | Pair | Pads | str = 0
    dilation: int | Pair = 1
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        require_positive(
            self,
            out_channels=self.out_channels,
            kernel_size=self.kernel_size,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )
        if self.out_channels % self.groups:
            raise ModelError(
                f"{self.kind}: groups: must divide out_channels ({self.out_channels}), "
                f"found {self.groups}"
            )
        if isinstance(self.padding, str):
            if self.padding not in self.paddings:
                numbers = "number, a pair" if self.dims == 1 else "number, a pair, a list of 4"
                raise ModelError(
                    f"{self.kind}: padding: found '{self.padding}', "
                    f"allowed: a {numbers}, {', '.join(self.paddings)}"
                    f"{did_you_mean(self.padding, self.paddings)}"
                )
            if self.padding == "same" and self.both(self.stride) != (1, 1):
                raise ModelError(f"{self.kind}: padding: 'same' needs stride 1")
        elif (self.padding if isinstance(self.padding, int) else min(self.padding)) < 0:
            raise ModelError(f"{self.kind}: padding: must not be negative, found {self.padding}")

    def window(self, x: Shape) -> Window:
        kernel, dilation = self.both(self.kernel_size), self.both(self.dilation)
        window = Window(kernel, self.both(self.stride), dilation)
        return window._replace(pads=self._pads(*window.reach))

    def _pads(self, rows: int, columns: int) -> Pads:
        """Zeros at (top, bottom, left, right) for a kernel that reaches so far."""
        match self.padding:
            case "valid":
                return (0, 0, 0, 0)
            case "same":
                return (rows // 2, rows - rows // 2, columns // 2, columns - columns // 2)
            case "causal":
                return (0, 0, columns, 0)
            case (top, bottom, left, right):
                return (top, bottom, left, right)
            case (first, last):
                return (0, 0, first, last) if self.dims == 1 else (first, first, last, last)
            case _:
                assert isinstance(self.padding, int)
                top, left = self.both(self.padding, height=0)
                return (top, top, left, left)

    def channels_of(self, x: Shape) -> int:
        if x[0] % self.groups:
            raise ModelError(
                f"{self.kind}: groups: must divide the input's channels ({x[0]}), "
                f"found {self.groups}"
            )
        return self.out_channels

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        kernel = self.both(self.kernel_size)[-self.dims :]
        channels = x[0] // self.groups
        fan_in = channels * prod(kernel)
        weight = ParamSpec("weight", (self.out_channels, channels, *kernel), fan_in)
        return (weight, ParamSpec("bias", (self.out_channels,), fan_in)) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        taps = prod(self.both(self.kernel_size))
        return 2 * (x[0] // self.groups) * taps * prod(self.output_shape(x))


@dataclass(frozen=True)
class Conv2d(Conv):
    """``torch.nn.Conv2d``; ``padding`` may be a number, a pair (rows, columns), or four numbers
    (top, bottom, left, right)."""

    kind: ClassVar[str] = "conv2d"


@dataclass(frozen=True)
class Conv1d(Conv):
    """``torch.nn.Conv1d``; ``padding`` may be a number, a pair (left, right), or ``"causal"``:
    dilation·(kernel_size - 1) on the left, so that no output depends on a later input and, at
    stride 1, the output is as long as the input."""

    kind: ClassVar[str] = "conv1d"
    dims: ClassVar[Literal[1, 2]] = 1
    paddings: ClassVar[tuple[str, ...]] = ("same", "valid", "causal")
    kernel_size: int
    stride: int = 1
    padding: int | Pair | str = 0
    dilation: int = 1
