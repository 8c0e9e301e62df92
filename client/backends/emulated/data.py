"""A data set on an emulated device: the inner device's, and what passes the link for it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from client.backends.base import DeviceData
from client.model.graph import Model
from client.model.losses import Labels, Loss

if TYPE_CHECKING:
    from client.backends.emulated.device import EmulatedDevice

DATA_SHARE = 0.5
"""Of the device's memory that is left, a data set may take so much; a larger one is streamed."""


class EmulatedData(DeviceData):
    """``x``: (n, *shape), uint8 or float32; ``y``: (n, *labels). ``labels`` are the host's own.

    Where the examples are not resident, each batch's pass the link when it is gathered.
    """

    def __init__(self, device: EmulatedDevice, x: NDArray[Any], y: Labels, room: int) -> None:
        self.inner = device.inner.load(x, y)
        self.num_examples = self.inner.num_examples
        self.labels = y
        self.row_nbytes = x.itemsize * prod(x.shape[1:])
        self.resident = self.inner.resident and (not room or x.nbytes + y.nbytes <= room)
        self.nbytes = y.nbytes + (x.nbytes if self.resident else 0)
        self._device = device

    def check(self, model: Model, loss: Loss) -> None:
        self.inner.check(model, loss)

    def gather_nbytes(self, count: int) -> int:
        """What passes the link for ``count`` examples."""
        return 0 if self.resident else count * self.row_nbytes

    def release(self) -> None:
        self._device.release(self, self.inner.release)
