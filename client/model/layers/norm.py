"""Normalisation: over the batch, over groups of an example's channels, over its last axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from client.errors import ModelError
from client.model.layers.base import Layer, ParamSpec, Shape


def _scale_and_shift(shape: Shape) -> tuple[ParamSpec, ParamSpec]:
    return ParamSpec("weight", shape, value=1.0), ParamSpec("bias", shape, value=0.0)


def _require_eps(layer: Layer, eps: float) -> None:
    # the reciprocal of its square root must be a number in float32, with room for a gradient
    if not 1e-30 <= eps < float("inf"):
        raise ModelError(f"{layer.kind}: eps: must be at least 1e-30, found {eps}")


@dataclass(frozen=True)
class BatchNorm(Layer):
    """y = (x - mean)/sqrt(var + eps)·weight + bias for each channel, the first axis.

    In training, mean and variance are those of the batch, over examples and positions, and
    the running ones move: running += momentum·(batch's - running), the variance unbiased, as in
    PyTorch. In evaluation and where the layer is frozen, the running ones are used and stay.

    Where a batch has one value per channel only (one example without positions), its variance
    says nothing. PyTorch refuses such a batch; as an epoch's last batch may be one, here it is
    normalised by the running statistics, which it leaves as they are.
    """

    uses_batch: ClassVar[bool] = True
    eps: float = 1e-5
    momentum: float = 0.1
    affine: bool = True

    def __post_init__(self) -> None:
        _require_eps(self, self.eps)
        if not 0 <= self.momentum <= 1:
            raise ModelError(f"{self.kind}: momentum: must lie in [0, 1], found {self.momentum}")

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        return _scale_and_shift(x[:1]) if self.affine else ()

    def buffers(self, x: Shape) -> tuple[ParamSpec, ...]:
        mean = ParamSpec("running_mean", x[:1], value=0.0)
        return mean, ParamSpec("running_var", x[:1], value=1.0, variance=True)

    def flops(self, x: Shape) -> int:
        return 2 * prod(x)


@dataclass(frozen=True)
class BatchNorm1d(BatchNorm):
    """Batch norm of (C,) or (C, L), as ``torch.nn.BatchNorm1d``."""

    kind: ClassVar[str] = "batchnorm1d"

    def output_shape(self, x: Shape) -> Shape:
        if len(x) not in (1, 2):
            raise ModelError(
                f"batchnorm1d needs an input of shape (channels,) or (channels, steps), found {x}"
            )
        return x


@dataclass(frozen=True)
class BatchNorm2d(BatchNorm):
    """Batch norm of (C, H, W), as ``torch.nn.BatchNorm2d``."""

    kind: ClassVar[str] = "batchnorm2d"

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 3:
            raise ModelError(
                f"batchnorm2d needs an input of shape (channels, height, width), found {x}"
            )
        return x


@dataclass(frozen=True)
class GroupNorm(Layer):
    """y = (x - mean)/sqrt(var + eps)·weight + bias over each group of an example's channels.

    Channels are the first axis of (C,), (C, L) or (C, H, W), and each has its own weight and
    bias, as ``torch.nn.GroupNorm`` has it.
    """

    kind: ClassVar[str] = "groupnorm"
    num_groups: int
    eps: float = 1e-5
    affine: bool = True

    def __post_init__(self) -> None:
        _require_eps(self, self.eps)
        if self.num_groups < 1:
            raise ModelError(f"groupnorm: num_groups: must be at least 1, found {self.num_groups}")

    def output_shape(self, x: Shape) -> Shape:
        if x[0] % self.num_groups:
            raise ModelError(
                f"groupnorm: num_groups: must divide the input's channels ({x[0]}), "
                f"found {self.num_groups}"
            )
        return x

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        return _scale_and_shift(x[:1]) if self.affine else ()

    def flops(self, x: Shape) -> int:
        return 7 * prod(x)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """y = (x - mean)/sqrt(var + eps)·weight + bias over the last axes of an example.

    ``normalized_shape``: the sizes of these axes, as ``torch.nn.LayerNorm`` takes them; weight and
    bias have one number for each place in them.
    """

    kind: ClassVar[str] = "layernorm"
    normalized_shape: int | tuple[int, ...]
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: bool = True

    def __post_init__(self) -> None:
        _require_eps(self, self.eps)

    @property
    def sizes(self) -> Shape:
        """Sizes of the last axes."""
        shape = self.normalized_shape
        return (shape,) if isinstance(shape, int) else shape

    def output_shape(self, x: Shape) -> Shape:
        if not self.sizes or x[-len(self.sizes) :] != self.sizes:
            raise ModelError(
                f"layernorm: normalized_shape: must be the last sizes of the input {x}, "
                f"found {self.normalized_shape}"
            )
        return x

    def params(self, x: Shape) -> tuple[ParamSpec, ...]:
        weight, bias = _scale_and_shift(self.sizes)
        if not self.elementwise_affine:
            return ()
        return (weight, bias) if self.bias else (weight,)

    def flops(self, x: Shape) -> int:
        return 7 * prod(x)
