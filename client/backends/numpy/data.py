"""A data set as numpy sees it: the host's own arrays, nothing is copied."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from client.backends.base import DeviceData
from client.backends.checks import check_examples, check_fit, check_tokens, largest_token
from client.model.graph import Model
from client.model.losses import Labels, Loss


class NumpyData(DeviceData):
    """``x``: (n, *shape), uint8 or float32; ``y``: (n, *labels), int32 or float32."""

    resident = True

    def __init__(self, x: NDArray[Any], y: Labels) -> None:
        self._labels = check_examples(x, y)
        self._token = largest_token(x)
        self.x, self.y = x, y
        self.num_examples = len(x)
        self.nbytes = x.nbytes + y.nbytes

    def check(self, model: Model, loss: Loss) -> None:
        check_fit(model, loss, self.x.shape[1:], self._labels)
        check_tokens(model, self._token)

    def release(self) -> None:
        self.x, self.y = self.x[:0], self.y[:0]
        self.num_examples = self.nbytes = 0
