"""What every backend refuses, in the same words: layers it does not know, data that do not fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.errors import DataError, DeviceError
from client.model.graph import Model, Segment
from client.model.layers import Layer, Shape
from client.model.losses import Labels, LabelsInfo, Loss


def require_layers(segment: Segment, known: Collection[type[Layer]], backend: str) -> None:
    """DeviceError where the segment has a layer that a backend does not know."""
    for op in segment.ops:
        if type(op.layer) not in known:
            raise DeviceError(f"the backend {backend} cannot train the layer {op.layer.kind}")


def check_examples(x: NDArray[Any], y: Labels) -> LabelsInfo:
    """What the labels are; DataError where these are not examples with labels."""
    if x.dtype not in (np.uint8, np.float32):
        raise DataError(f"x: found dtype {x.dtype}, allowed: uint8, float32")
    if y.dtype not in (np.int32, np.float32):
        raise DataError(f"y: found dtype {y.dtype}, allowed: int32, float32")
    if not y.ndim or len(y) != len(x):
        raise DataError(f"y: found shape {y.shape}, needs labels for each of {len(x)} examples")
    return LabelsInfo.of(y)


def largest_token(x: NDArray[Any]) -> int | None:
    """The largest value of ``x``, where all are whole numbers from 0 on: else None."""
    if x.ndim != 2 or not x.size:
        return None
    if x.dtype != np.uint8 and not (x.min() >= 0 and (x == np.floor(x)).all()):
        return None
    largest = float(x.max())
    return int(largest) if np.isfinite(largest) else None


def check_tokens(model: Model, largest: int | None) -> None:
    """DataError where the model takes tokens and the examples (see largest_token) are none."""
    vocabulary = model.input.vocabulary
    if vocabulary is None:
        return
    if largest is None:
        raise DataError(f"x: model '{model.name}' takes tokens: whole numbers from 0 on")
    if largest >= vocabulary:
        raise DataError(
            f"x: found token {largest}, model '{model.name}' has a vocabulary of "
            f"{vocabulary} (tokens 0 to {vocabulary - 1})"
        )


def check_fit(model: Model, loss: Loss, shape: Shape, labels: LabelsInfo) -> None:
    """DataError where examples of ``shape`` with such labels do not fit model and loss."""
    if shape != model.input.shape:
        raise DataError(
            f"x: examples have shape {shape}, model '{model.name}' takes {model.input.shape}"
        )
    loss.check_labels(model.output_shape, labels)
