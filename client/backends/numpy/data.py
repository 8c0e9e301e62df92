"""A data set as numpy sees it: the host's own arrays, nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.backends.base import DeviceData
from client.backends.checks import check_examples, check_fit
from client.model.graph import Model


class NumpyData(DeviceData):
    """``x``: (n, *shape), uint8 or float32; ``y``: (n,) class numbers."""

    resident = True

    def __init__(self, x: NDArray[Any], y: NDArray[np.int32]) -> None:
        self._largest = check_examples(x, y)
        self.x, self.y = x, y
        self.num_examples = len(x)
        self.nbytes = x.nbytes + y.nbytes

    def check(self, model: Model) -> None:
        """DataError where the examples do not fit the model."""
        check_fit(model, self.x.shape[1:], self._largest)

    def release(self) -> None:
        self.x, self.y = self.x[:0], self.y[:0]
        self.num_examples = self.nbytes = 0
