"""An opened OpenCL device: queues, transfers, data sets, programs, throttle."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from client.backends.base import ROOM_FOR_DATA, Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.exercises import Exercises
from client.backends.figures import Peaks, Traffic
from client.backends.opencl import peak, tuned
from client.backends.opencl.allocation import Allocator, Limits
from client.backends.opencl.calls import errors_as_ours
from client.backends.opencl.data import OpenCLData
from client.backends.opencl.exercises import OpenCLExercises
from client.backends.opencl.plan import MOST_NBYTES, SegmentPlan, plan_segment
from client.backends.opencl.program import OpenCLProgram
from client.backends.opencl.program_cache import ProgramCache, keeps_its_own
from client.backends.opencl.sampling import Sample, Samples
from client.backends.opencl.tiles import Target, shipped_target
from client.backends.opencl.transfer import through_map
from client.backends.recipe import DEFAULT_RECIPE, Recipe
from client.backends.throttle import Throttle
from client.cache import cache_dir
from client.errors import DeviceError
from client.model.graph import Segment
from client.model.losses import Labels


class OpenCLDevice(Device):
    """See ``Device``. ``limits`` and ``target`` replace the device's own, to test other devices'.

    Commands run in order on ``queue``; steps that are timed run on ``profiling_queue`` instead,
    chained to it by events; chunks of streamed data are uploaded on ``transfer_queue``.
    """

    has_queue: ClassVar[bool] = True

    def __init__(
        self,
        device: cl.Device,
        info: DeviceInfo,
        limits: Limits | None = None,
        target: Target | None = None,
    ) -> None:
        self.info = info
        self.traffic = Traffic()
        self.shipped = target or shipped_target(info, device.native_vector_width_float)
        self.target = target or tuned.load(info).target(self.shipped)
        with errors_as_ours(info.name, "opening the device"):
            self.context = cl.Context([device])
            self.queue = cl.CommandQueue(self.context)
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            self.profiling_queue = cl.CommandQueue(self.context, properties=profiling)
            self.transfer_queue = cl.CommandQueue(self.context, properties=profiling)
        self.allocator = Allocator(self.context, info, limits or Limits.of(info))
        folder = None if keeps_its_own(device) else cache_dir() / "programs"
        self.programs = ProgramCache(self.context, device, info.description, folder)
        self.samples = Samples(self.traffic)
        self._throttle = Throttle()
        self._last: cl.Event | None = None
        self._uploads: list[cl.Event] = []
        self._held: list[OpenCLProgram | OpenCLData] = []

    # -- Device ------------------------------------------------------------------------------
    @property
    def peak_nbytes(self) -> int:
        return self.allocator.peak_nbytes

    def load(self, x: NDArray[Any], y: Labels) -> DeviceData:
        data = OpenCLData(self, x, y)
        self._held.append(data)
        return data

    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}, must be at least 1")
        plan = self._plan(segment, capacity, recipe)
        refusal = self._refusal(plan)
        if refusal:
            raise DeviceError(
                f"{self.info.name}: model '{segment.model.name}' with batches of {capacity}: "
                f"{refusal}; {self._remedy(segment, capacity, recipe)}"
            )
        program = OpenCLProgram(self, plan)
        self._held.append(program)
        return program

    def largest_batch(self, segment: Segment, at_most: int, recipe: Recipe) -> int:
        room = int((1 - ROOM_FOR_DATA) * self.allocator.free_nbytes)
        if not self._refusal(self._plan(segment, at_most, recipe), room):
            return at_most
        return self._bisect(segment, at_most, recipe, room)

    def _plan(self, segment: Segment, capacity: int, recipe: Recipe) -> SegmentPlan:
        most_nbytes = self.allocator.limits.max_alloc_nbytes
        return plan_segment(segment, capacity, self.target, recipe, most_nbytes)

    def _refusal(self, plan: SegmentPlan, room: int | None = None) -> str:
        """Why a plan does not fit, by default into all that is free; empty if it does."""
        sizes = list(plan.sizes)
        if max(sizes) > MOST_NBYTES:
            return f"needs a buffer of {max(sizes):,} bytes, kernels reach {MOST_NBYTES:,}"
        return self.allocator.refusal(sizes, room)

    def _bisect(
        self, segment: Segment, too_many: int, recipe: Recipe, room: int | None = None
    ) -> int:
        """The largest batch that fits, below one that does not."""
        fits = 0
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self._refusal(self._plan(segment, middle, recipe), room):
                too_many = middle
            else:
                fits = middle
        return fits

    def _remedy(self, segment: Segment, too_many: int, recipe: Recipe) -> str:
        fits = self._bisect(segment, too_many, recipe)
        if not fits:
            return "not even one example fits: choose a smaller model or another device"
        text = f"the largest batch that fits is {fits}: set train.batch to at most that"
        return text if segment.model.batch_layers else f"{text}, or train.micro_batch: auto"

    def measure_peaks(self) -> Peaks:
        self.finish()
        return peak.measure(self)

    def exercises(self) -> Exercises:
        return OpenCLExercises(self)

    def throttle(self, limit_s: float) -> None:
        self._forget_uploads()
        if self._last is not None:
            with errors_as_ours(self.info.name, "waiting for a step"):
                self.queue.flush()
                self._throttle.add(_Marker(self._last), limit_s)
            self._last = None

    def flush(self) -> None:
        with errors_as_ours(self.info.name, "submitting what is enqueued"):
            for queue in (self.queue, self.profiling_queue):
                queue.flush()

    def finish(self) -> None:
        with errors_as_ours(self.info.name, "waiting for the queue"):
            for queue in (self.transfer_queue, self.profiling_queue, self.queue):
                queue.finish()
        self._last = None
        self._throttle.idle()
        self._forget_uploads()
        self.samples.read()

    def close(self) -> None:
        self.finish()
        for held in list(self._held):
            held.release()

    # -- for programs and data ------------------------------------------------------------------
    def released(self, held: OpenCLProgram | OpenCLData) -> None:
        """A program or data set was released."""
        self._held.remove(held)

    def enqueued(self, last: cl.Event) -> None:
        """Work was enqueued up to this event."""
        self._last = last

    def stream(self, sample: Sample | None) -> cl.CommandQueue:
        """Where a program's commands go: a step that is timed has a queue of its own."""
        return self.queue if sample is None else self.profiling_queue

    def upload(
        self,
        buffer: cl.Buffer,
        values: NDArray[Any],
        *,
        wait: bool,
        offset_nbytes: int = 0,
        sample: Sample | None = None,
    ) -> None:
        """Host -> device. Without ``wait``, ``values`` must not change until the queue is done."""
        self.traffic.upload_nbytes += values.nbytes
        if not values.nbytes:
            return
        queue = self.stream(sample)
        with errors_as_ours(self.info.name, f"uploading {values.nbytes:,} bytes"):
            if wait and self.info.unified_memory:
                write = cl.map_flags.WRITE_INVALIDATE_REGION
                events = through_map(queue, buffer, values, write, offset_nbytes)
            else:
                events = [
                    cl.enqueue_copy(
                        queue, buffer, values, dst_offset=offset_nbytes, is_blocking=wait
                    )
                ]
            if not wait:
                self._uploads += events  # they hold the values until they are done
            if sample is not None:
                for event in events:
                    sample.add("transfer", event)

    def download(
        self,
        buffer: cl.Buffer,
        shape: tuple[int, ...],
        dtype: Any,
        offset_nbytes: int = 0,
        sample: Sample | None = None,
    ) -> NDArray[Any]:
        """Wait for the queue; device -> host."""
        values = np.empty(shape, dtype)
        self.traffic.download_nbytes += values.nbytes
        if not values.nbytes:
            return values
        queue = self.stream(sample)
        with errors_as_ours(self.info.name, f"downloading {values.nbytes:,} bytes"):
            if self.info.unified_memory:
                events = through_map(queue, buffer, values, cl.map_flags.READ, offset_nbytes)
            else:
                events = [cl.enqueue_copy(queue, values, buffer, src_offset=offset_nbytes)]
            if sample is not None:
                for event in events:
                    sample.add("transfer", event)
        self._forget_uploads()
        self.samples.read()
        return values

    def _forget_uploads(self) -> None:
        self._uploads = [event for event in self._uploads if not _complete(event)]


class _Marker:
    def __init__(self, event: cl.Event) -> None:
        self._event = event

    def done(self) -> bool:
        return _complete(self._event)

    def wait(self) -> None:
        self._event.wait()


def _complete(event: cl.Event) -> bool:
    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)
