"""A data set as numpy sees it: the host's own arrays, nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import DeviceData
from client.errors import DataError
from client.model.graph import Model


class NumpyData(DeviceData):
    """``x``: (n, *shape), uint8 or float32; ``y``: (n,) class numbers."""

    resident = True

    def __init__(self, x: NDArray[Any], y: NDArray[np.int32]) -> None:
        if x.dtype not in (np.uint8, np.float32):
            raise DataError(f"x: found dtype {x.dtype}, allowed: uint8, float32")
        if y.shape != (len(x),):
            raise DataError(f"y: found shape {y.shape}, needs one label for each of {len(x)}")
        if len(y) and y.min() < 0:
            raise DataError(f"y: found label {y.min()}, labels must be class numbers from 0")
        self.x, self.y = x, y
        self.num_examples = len(x)
        self.nbytes = x.nbytes + y.nbytes
        self._largest = int(y.max()) if len(y) else 0

    def check(self, model: Model) -> None:
        """DataError where the examples do not fit the model."""
        if self.x.shape[1:] != model.input.shape:
            raise DataError(
                f"x: examples have shape {self.x.shape[1:]}, "
                f"model '{model.name}' takes {model.input.shape}"
            )
        if self._largest >= model.num_classes:
            raise DataError(
                f"y: found label {self._largest}, model '{model.name}' has "
                f"{model.num_classes} classes (labels 0 to {model.num_classes - 1})"
            )

    def release(self) -> None:
        self.x, self.y = self.x[:0], self.y[:0]
        self.num_examples = self.nbytes = 0
