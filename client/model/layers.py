"""Layers: what each computes in shapes, parameters, operations; no arithmetic (backends do that).

Shapes are those of one example, without the batch axis: ``(features,)`` or
``(channels, height, width)``. Names of layers, attributes and parameters are PyTorch's, so that
a model's state can be loaded into the same network built with ``torch.nn`` and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, NamedTuple

from client.errors import ModelError, did_you_mean

Shape = tuple[int, ...]


class ParamSpec(NamedTuple):
    """One parameter tensor of a layer: suffix of its name, shape, fan-in of its initialisation."""

    suffix: str
    shape: Shape
    fan_in: int


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """``3`` -> ``(3, 3)``: the same in both spatial directions."""
    return (value, value) if isinstance(value, int) else value


@dataclass(frozen=True)
class Layer:
    """Base: no parameters, output as input, one operation per element."""

    kind: ClassVar[str] = ""

    def output_shape(self, x: Shape) -> Shape:
        """Shape of the output for an input of shape ``x``; ModelError if it cannot be."""
        return x

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        """Parameter tensors for an input of shape ``x``."""
        return ()

    def flops(self, x: Shape) -> int:
        """Operations of the forward pass for one example; a multiply-add counts as two."""
        return prod(self.output_shape(x))


def _image(layer: Layer, x: Shape) -> tuple[int, int, int]:
    if len(x) != 3:
        raise ModelError(
            f"{layer.kind} needs an input of shape (channels, height, width), found {x}"
        )
    return x[0], x[1], x[2]


def _positive(layer: Layer, **values: int | tuple[int, int] | None) -> None:
    for key, value in values.items():
        if value is not None and min(pair(value)) < 1:
            raise ModelError(f"{layer.kind}: {key}: must be at least 1, found {value}")


@dataclass(frozen=True)
class Linear(Layer):
    """y = x Wᵀ + b, with W of shape (out_features, in_features)."""

    kind: ClassVar[str] = "linear"
    out_features: int
    bias: bool = True

    def __post_init__(self) -> None:
        _positive(self, out_features=self.out_features)

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 1:
            raise ModelError(f"linear needs a flat input, found shape {x}: put a flatten before it")
        return (self.out_features,)

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        weight = ParamSpec("weight", (self.out_features, x[0]), x[0])
        return (weight, ParamSpec("bias", (self.out_features,), x[0])) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        return 2 * x[0] * self.out_features


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
        _positive(
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
        channels, height, width = _image(self, x)
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


@dataclass(frozen=True)
class _Pool2d(Layer):
    """Windows of ``kernel_size`` moved by ``stride`` (by default the kernel's size)."""

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int] | None = None
    padding: int | tuple[int, int] = 0

    def __post_init__(self) -> None:
        _positive(self, kernel_size=self.kernel_size, stride=self.stride)
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
        channels, height, width = _image(self, x)
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
        return (_image(self, x)[0],)

    def flops(self, x: Shape) -> int:
        return prod(x)


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
class Flatten(Layer):
    """(C, H, W) -> (C·H·W,): the same numbers, seen as one axis."""

    kind: ClassVar[str] = "flatten"

    def output_shape(self, x: Shape) -> Shape:
        return (prod(x),)

    def flops(self, x: Shape) -> int:
        return 0


@dataclass(frozen=True)
class Dropout(Layer):
    """Zero each element with probability ``p`` in training and scale the rest by 1/(1-p)."""

    kind: ClassVar[str] = "dropout"
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ModelError(f"dropout: p: must lie in [0, 1), found {self.p}")


@dataclass(frozen=True)
class Add(Layer):
    """Sum of two tensors of one shape: the end of a residual block. Not written in YAML."""

    kind: ClassVar[str] = "add"


LAYERS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        Linear,
        Conv2d,
        MaxPool2d,
        AvgPool2d,
        GlobalAvgPool2d,
        ReLU,
        ReLU6,
        LeakyReLU,
        GELU,
        SiLU,
        Hardswish,
        Sigmoid,
        Tanh,
        Flatten,
        Dropout,
    )
}
"""Layers that may be named in YAML by their ``type`` (a residual block is built of them)."""
