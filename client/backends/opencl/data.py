"""Data sets: resident on the device, or on the host and streamed in chunks of the epoch's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.base import DeviceData
from client.backends.checks import check_examples, check_fit, check_tokens, largest_token
from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.sampling import Sample
from client.errors import DataError, DeviceError
from client.model.graph import Model
from client.model.losses import Labels, Loss

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

SLACK_NBYTES = 64
"""After the last example: the widest vector load may reach over its end."""

DATA_SHARE = 0.5
"""Of the device's memory that is left, a data set may take so much."""

CHUNK_NBYTES = 32 << 20
"""Streamed chunks are about so large: many batches, and soon there."""


class OpenCLData(DeviceData):
    """``x``: (n, *shape), uint8 or float32; ``y``: (n, *labels), int32 or float32.

    Labels are always resident; ``labels`` are the host's own.
    """

    def __init__(self, device: OpenCLDevice, x: NDArray[Any], y: Labels) -> None:
        self._info = check_examples(x, y)
        self.labels = y
        self._token = largest_token(x)
        if not len(x):
            raise DataError("x: found no examples, needs at least one")
        self._device = device
        self.dtype, self.shape = x.dtype, x.shape[1:]
        self.num_examples = len(x)
        self.row_nbytes = x.nbytes // len(x)
        limits, free = device.allocator.limits, device.allocator.free_nbytes
        self.resident = (
            x.nbytes + SLACK_NBYTES <= limits.max_alloc_nbytes
            and x.nbytes + y.nbytes <= DATA_SHARE * free
        )
        self.nbytes = y.nbytes + (x.nbytes + SLACK_NBYTES if self.resident else 0)
        self.x: cl.Buffer | None = None
        self.rows: NDArray[Any] | None = None  # (n, elements of an example), where streamed
        self.y: cl.Buffer | None = device.allocator.make(y.nbytes, "labels")
        try:
            device.upload(self.y, np.ascontiguousarray(y), wait=True)
            if self.resident:
                self.x = device.allocator.make(x.nbytes + SLACK_NBYTES, "the data set")
                device.upload(self.x, np.ascontiguousarray(x), wait=True)
            else:
                self.rows = np.ascontiguousarray(x).reshape(len(x), -1)
        except BaseException:
            self._free()
            raise

    def check(self, model: Model, loss: Loss) -> None:
        if self.y is None:
            raise ValueError("the data set was released")
        check_fit(model, loss, self.shape, self._info)
        check_tokens(model, self._token)

    def release(self) -> None:
        if self.y is None:
            return
        self._free()
        self._device.released(self)

    def _free(self) -> None:
        for buffer in (self.x, self.y):
            if buffer is not None:
                self._device.allocator.give_back(buffer)
        self.x = self.y = self.rows = None


class Feed(Protocol):
    """Where the rows of an epoch's batches come from; ``nbytes``: held on the device."""

    nbytes: int

    def batch(self, start: int) -> tuple[cl.Buffer, int, list[cl.Event]]:
        """Buffer, place in the order at which it begins (-1: it holds examples by number), and
        what a gather from it must wait for."""

    def gathered(self, start: int, count: int, event: cl.Event, sample: Sample | None) -> None:
        """The batch's gather was enqueued."""

    def release(self) -> None:
        """Free what the feed holds."""


class ResidentFeed:
    """All examples lie on the device."""

    nbytes = 0

    def __init__(self, data: OpenCLData) -> None:
        self._data = data

    def batch(self, start: int) -> tuple[cl.Buffer, int, list[cl.Event]]:
        return self._data.x, -1, []

    def gathered(self, start: int, count: int, event: cl.Event, sample: Sample | None) -> None:
        """Nothing depends on it."""

    def release(self) -> None:
        """Nothing is held."""


class _Half:
    """One of the two buffers that chunks alternate between, with its staging memory."""

    def __init__(self, buffer: cl.Buffer, staging: NDArray[Any]) -> None:
        self.buffer, self.staging = buffer, staging
        self.chunk = -1  # which one is there
        self.uploaded: cl.Event | None = None
        self.read: cl.Event | None = None  # the last gather from it


class StreamFeed:
    """Chunks of the order, gathered on the host and uploaded while the one before is in use.

    A chunk is a whole number of batches. Where a half is filled again, the upload waits on the
    device for the last gather from it, and the host for the last upload from its staging memory.
    """

    def __init__(self, device: OpenCLDevice, data: OpenCLData, batch: int) -> None:
        assert data.rows is not None
        self.data, self.batch_size = data, batch
        self._device, self._rows = device, data.rows
        self._order = np.empty(0, np.int32)
        batch_nbytes = batch * data.row_nbytes
        limits, free = device.allocator.limits, device.allocator.free_nbytes
        most = min(limits.max_alloc_nbytes, free // 2) - SLACK_NBYTES
        if batch_nbytes > most:
            raise DeviceError(
                f"{device.info.name}: streaming batches of {batch} examples needs two buffers of "
                f"{batch_nbytes:,} bytes, {max(most, 0):,} bytes each are left: set train.batch to "
                f"at most {max(most, 0) // data.row_nbytes}"
            )
        batches = max(1, min(most // 2, CHUNK_NBYTES) // batch_nbytes)
        self._chunk_rows = min(batches, -(-data.num_examples // batch)) * batch
        shape = (self._chunk_rows, data.rows.shape[1])
        nbytes = self._chunk_rows * data.row_nbytes + SLACK_NBYTES
        self._halves = [
            _Half(device.allocator.make(nbytes, "streamed data"), np.empty(shape, data.dtype))
            for _ in range(2)
        ]
        self.nbytes = 2 * nbytes

    def begin(self, order: NDArray[np.int32]) -> None:
        """A new epoch: what the halves hold is out of date."""
        self._order = order
        for half in self._halves:
            half.chunk = -1

    def batch(self, start: int) -> tuple[cl.Buffer, int, list[cl.Event]]:
        chunk = start // self._chunk_rows
        half, other = self._halves[chunk % 2], self._halves[(chunk + 1) % 2]
        if half.chunk != chunk:
            self._fill(half, chunk)
        if other.chunk != chunk + 1 and (chunk + 1) * self._chunk_rows < len(self._order):
            self._fill(other, chunk + 1)
        assert half.uploaded is not None
        return half.buffer, chunk * self._chunk_rows, [half.uploaded]

    def gathered(self, start: int, count: int, event: cl.Event, sample: Sample | None) -> None:
        chunk = start // self._chunk_rows
        half = self._halves[chunk % 2]
        half.read = event
        if sample is not None and half.uploaded is not None:
            rows = min(self._chunk_rows, len(self._order) - chunk * self._chunk_rows)
            sample.add("transfer", half.uploaded, count / rows)

    def _fill(self, half: _Half, chunk: int) -> None:
        rows = self._order[chunk * self._chunk_rows :][: self._chunk_rows]
        device = self._device
        with errors_as_ours(device.info.name, "uploading a chunk of the data set"):
            if half.uploaded is not None:
                half.uploaded.wait()
            # The order was checked; "clip" lets take() write to out without a copy in between.
            values = np.take(self._rows, rows, axis=0, out=half.staging[: len(rows)], mode="clip")
            before = [half.read] if half.read is not None else []
            if before:
                device.queue.flush()
                device.profiling_queue.flush()
            half.uploaded = cl.enqueue_copy(
                device.transfer_queue, half.buffer, values, is_blocking=False, wait_for=before
            )
            device.transfer_queue.flush()
        device.traffic.upload_nbytes += values.nbytes
        half.chunk = chunk

    def release(self) -> None:
        self._device.finish()
        for half in self._halves:
            self._device.allocator.give_back(half.buffer)
        self._halves = []
