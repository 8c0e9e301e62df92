"""An epoch on a device: its data set and order, and the launches that bring its batches in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.data import Feed, OpenCLData, ResidentFeed, StreamFeed
from client.backends.opencl.launch import Launch
from client.backends.opencl.plan import SegmentPlan, gather_launches
from client.backends.opencl.prepare import Prepared
from client.backends.opencl.sampling import Sample
from client.model.losses import Labels

if TYPE_CHECKING:
    from client.backends.opencl.device import OpenCLDevice

Bind = Callable[[Sequence[Launch], int, str], list[Prepared]]
"""Prepares launches for a size of batch and a mode."""


class Epoch:
    """See the module. What it holds on the device stays for the next epoch, as far as it fits."""

    def __init__(self, device: OpenCLDevice, plan: SegmentPlan, bind: Bind) -> None:
        self._device, self._plan, self._bind = device, plan, bind
        self._gather: dict[tuple[int, np.dtype[Any]], list[Prepared]] = {}
        self._bound: set[tuple[int, np.dtype[Any]]] = set()  # with the arguments of this data set
        self._data: OpenCLData | None = None
        self._feed: Feed | None = None
        self._order: NDArray[np.int32] = np.empty(0, np.int32)
        self._order_there: cl.Buffer | None = None
        self._affine: list[cl.Buffer] = []
        self.batch = 0  # examples in each but the last; 0 before the first epoch

    @property
    def num_ordered(self) -> int:
        """Examples that the epoch visits."""
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Held on the device, beside the data set itself."""
        order = [self._order_there] if self._order_there is not None else []
        feed_nbytes = self._feed.nbytes if self._feed is not None else 0
        return sum(int(buffer.size) for buffer in (*self._affine, *order)) + feed_nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of a number in the data set; 0 before the first epoch."""
        return self._data.dtype.itemsize if self._data is not None else 0

    def begin(self, data: OpenCLData, order: NDArray[np.int32], batch: int) -> None:
        """Visit ``data`` in ``order``, which must not change, by batches of ``batch``."""
        there = self._order_there
        if there is None or there.size < order.nbytes:
            if there is not None:
                self._device.allocator.give_back(there)
            self._order_there = self._device.allocator.make(order.nbytes, "an epoch's order")
            self._bound.clear()
        self._device.upload(self._order_there, order, wait=False)
        self._order = order
        if data is not self._data:
            self._set_affine(data.dtype)
            self._bound.clear()
        self._feed = self._feed_for(data, order, batch)
        self._data, self.batch = data, batch

    def labels(self, start: int, count: int) -> Labels:
        """The host's labels of examples order[start:start + count]."""
        if self._data is None:
            raise RuntimeError("labels before begin_epoch")
        return self._data.labels[self._order[start : start + count]]

    def gather(self, start: int, count: int) -> tuple[list[Prepared], list[cl.Event]]:
        """The launches that bring examples order[start:start + count] in; what they wait for."""
        assert self._feed is not None
        assert self._data is not None
        gather = self._gather_for(self._data, count)
        kernel, place = gather[0].kernel, gather[0].num_args
        wait_for: list[cl.Event] = []
        with errors_as_ours(self._device.info.name, "gathering a batch"):
            for prepared in gather:
                prepared.kernel.set_arg(prepared.num_args, np.int32(start))
            if self._plan.segment.is_first:
                buffer, chunk_start, wait_for = self._feed.batch(start)
                if chunk_start >= 0:
                    kernel.set_arg(place + 1, np.int32(chunk_start))
                    kernel.set_arg(place + 2, buffer)
        return gather, wait_for

    def gathered(self, start: int, count: int, event: cl.Event, sample: Sample | None) -> None:
        """The launches were enqueued, up to ``event``."""
        assert self._feed is not None
        self._feed.gathered(start, count, event, sample)

    def release(self) -> None:
        """Free what it holds on the device."""
        if self._feed is not None:
            self._feed.release()
        for buffer in self._affine:
            self._device.allocator.give_back(buffer)
        if self._order_there is not None:
            self._device.allocator.give_back(self._order_there)
        self._affine, self._order_there, self._feed, self._data = [], None, None, None
        self.batch = 0
        self._gather.clear()
        self._bound.clear()

    def _feed_for(self, data: OpenCLData, order: NDArray[np.int32], batch: int) -> Feed:
        feed = self._feed
        if data.resident or not self._plan.segment.is_first:
            if feed is not None:
                feed.release()
            return ResidentFeed(data)
        if not (isinstance(feed, StreamFeed) and feed.data is data and feed.batch_size == batch):
            self._feed = None
            if feed is not None:
                feed.release()
            feed = StreamFeed(self._device, data, batch)
        feed.begin(order)
        return feed

    def _set_affine(self, dtype: np.dtype[Any]) -> None:
        for buffer in self._affine:
            self._device.allocator.give_back(buffer)
        self._affine = []
        for values in self._plan.segment.model.input.affine(dtype):
            self._affine.append(self._device.allocator.make(values.nbytes, "normalisation"))
            self._device.upload(self._affine[-1], values, wait=True)

    def _gather_for(self, data: OpenCLData, count: int) -> list[Prepared]:
        """Prepared once for a size of batch and a type of data, and bound anew to each data set.

        pyopencl keeps some text for every kernel that was ever made, so that a kernel for each
        data set would grow without end.
        """
        key = count, data.dtype
        if key not in self._gather:
            launches = gather_launches(self._plan, data.dtype)
            self._gather[key] = self._bind(launches, count, "training")
            self._device.programs.save()
        if key not in self._bound:
            self._bind_gather(self._gather[key], data)
            self._bound.add(key)
        return self._gather[key]

    def _bind_gather(self, gather: list[Prepared], data: OpenCLData) -> None:
        """Last arguments of each: start, (chunk_start, data,) order, labels, (factor, shift)."""
        labels: list[cl.Buffer | np.generic | None] = [self._order_there, data.y]
        first = (
            [np.int32(-1), data.x, *labels, *self._affine]
            if self._plan.segment.is_first
            else labels
        )
        with errors_as_ours(self._device.info.name, "preparing the gather"):
            for prepared, rest in zip(gather, (first, labels), strict=False):
                for at, value in enumerate(rest, prepared.num_args + 1):
                    if value is not None:  # a chunk's buffer is set with each batch
                        prepared.kernel.set_arg(at, value)
