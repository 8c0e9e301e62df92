"""What a layer's implementation is given and what it must do.

All arrays of activations have the batch as their last axis: ``(features, N)`` and
``(channels, height, width, N)``. With it, each row of an image is one contiguous run of
``width * N`` numbers, so that cutting windows out for convolution and pooling copies and compares
long runs; the matrix product of a convolution reads and writes this layout as it is; and
flattening moves nothing. On two cores the usual ``(N, channels, height, width)`` took three to
five times as long for small images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from client.model.graph import Op
from client.model.layers import Shape

Array = NDArray[Any]
"""Of the device's dtype: float32, or float64 where gradients are checked."""


@dataclass
class Run:
    """What changes from step to step besides the tensors' contents."""

    training: bool
    dropout_key: int
    rows: NDArray[np.int32]  # data-set index of each example in the batch


@dataclass(frozen=True)
class Tensors:
    """Views that one operation reads and writes, for one batch size N.

    ``x``, ``dx``: inputs ``(*shape, N)`` and their gradients (None where none is needed);
    ``y``, ``dy``: output and its gradient (``y`` itself where ``backward`` will not be called);
    ``params``, ``grads``, ``buffers``: by the suffix of their names, such as ``weight``; a frozen
    operation has no ``grads``;
    ``memory(name, shape, dtype)``: working memory of the operation's own, kept between calls;
    the shape is complete, N included, and dtype None means the device's.
    """

    x: tuple[Array, ...]
    y: Array
    dx: tuple[Array | None, ...]
    dy: Array
    params: dict[str, Array]
    grads: dict[str, Array]
    buffers: dict[str, Array]
    memory: Callable[[str, Shape, Any], Array]


class Function(ABC):
    """Forward and backward of one layer, bound to its tensors.

    The constructor cuts all views, so that a step is numpy calls and nothing else. ``backward``
    overwrites gradients.
    """

    in_place: ClassVar[bool] = False
    """The output may share the input's memory."""

    reads_output: ClassVar[bool] = False
    """``backward`` reads ``y``, so that no later operation may overwrite it in place."""

    def __init__(self, op: Op, t: Tensors) -> None:
        self.op = op
        self.t = t

    @abstractmethod
    def forward(self, run: Run) -> None:
        """y from x."""

    @abstractmethod
    def backward(self) -> None:
        """dx and the parameters' gradients from dy, after ``forward`` of the same batch."""
