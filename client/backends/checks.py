"""What every backend refuses in a data set, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.errors import DataError
from client.model.graph import Model
from client.model.layers import Shape


def check_examples(x: NDArray[Any], y: NDArray[np.int32]) -> int:
    """The largest label; DataError where these are not examples with class numbers."""
    if x.dtype not in (np.uint8, np.float32):
        raise DataError(f"x: found dtype {x.dtype}, allowed: uint8, float32")
    if y.shape != (len(x),):
        raise DataError(f"y: found shape {y.shape}, needs one label for each of {len(x)}")
    if len(y) and y.min() < 0:
        raise DataError(f"y: found label {y.min()}, labels must be class numbers from 0")
    return int(y.max()) if len(y) else 0


def check_fit(model: Model, shape: Shape, largest_label: int) -> None:
    """DataError where examples of ``shape`` with such labels do not fit the model."""
    if shape != model.input.shape:
        raise DataError(
            f"x: examples have shape {shape}, model '{model.name}' takes {model.input.shape}"
        )
    if largest_label >= model.num_classes:
        raise DataError(
            f"y: found label {largest_label}, model '{model.name}' has "
            f"{model.num_classes} classes (labels 0 to {model.num_classes - 1})"
        )
