"""Convolution."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.errors import ModelError, did_you_mean
from client.model.layers.base import Layer, ParamSpec, Shape, image_shape, pair, require_positive


@dataclass(frozen=True)
class Conv2d(Layer):
    """Cross-correlation of (C, H, W) with weights (O, C/groups, KH, KW), as ``torch.nn.Conv2d``.

    Input and output channels fall into ``groups``, which have nothing to do with each other;
    with as many groups as input channels the convolution is called depthwise.
    ``padding`` is a number, a pair, ``"valid"`` (none) or ``"same"`` (stride 1 only; where the
    total is odd the extra row or column goes to the bottom or right, as in PyTorch).
    """

    kind: ClassVar[str] = "conv2d"
    out_channels: int
    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] = 1
    padding: int | tuple[int, int] | str = 0
    dilation: int | tuple[int, int] = 1
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
                f"conv2d: groups: must divide out_channels ({self.out_channels}), "
                f"found {self.groups}"
            )
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ModelError(
                    f"conv2d: padding: found '{self.padding}', "
                    "allowed: a number, a pair, same, valid"
                    f"{did_you_mean(self.padding, ('same', 'valid'))}"
                )
            if self.padding == "same" and pair(self.stride) != (1, 1):
                raise ModelError("conv2d: padding: 'same' needs stride 1")
        elif min(pair(self.padding)) < 0:
            raise ModelError(f"conv2d: padding: must not be negative, found {self.padding}")

    @property
    def pads(self) -> tuple[int, int, int, int]:
        """Rows and columns of zeros: (top, bottom, left, right)."""
        if self.padding == "valid":
            return (0, 0, 0, 0)
        if self.padding == "same":
            (kh, kw), (dh, dw) = pair(self.kernel_size), pair(self.dilation)
            h, w = dh * (kh - 1), dw * (kw - 1)
            return (h // 2, h - h // 2, w // 2, w - w // 2)
        assert not isinstance(self.padding, str)
        h, w = pair(self.padding)
        return (h, h, w, w)

    def output_shape(self, x: Shape) -> Shape:
        channels, height, width = image_shape(self, x)
        if channels % self.groups:
            raise ModelError(
                f"conv2d: groups: must divide the input's channels ({channels}), "
                f"found {self.groups}"
            )
        (kh, kw), (sh, sw) = pair(self.kernel_size), pair(self.stride)
        dh, dw = pair(self.dilation)
        top, bottom, left, right = self.pads
        oh = (height + top + bottom - dh * (kh - 1) - 1) // sh + 1
        ow = (width + left + right - dw * (kw - 1) - 1) // sw + 1
        if oh < 1 or ow < 1:
            raise ModelError(f"conv2d: the kernel {kh}x{kw} is larger than its padded input {x}")
        return (self.out_channels, oh, ow)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        kh, kw = pair(self.kernel_size)
        channels = x[0] // self.groups
        fan_in = channels * kh * kw
        weight = ParamSpec("weight", (self.out_channels, channels, kh, kw), fan_in)
        return (weight, ParamSpec("bias", (self.out_channels,), fan_in)) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        kh, kw = pair(self.kernel_size)
        return 2 * (x[0] // self.groups) * kh * kw * prod(self.output_shape(x))
