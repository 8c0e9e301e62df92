"""An emulated device: a device that computes, behind a link and on a clock of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from client.backends.base import Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.emulated.clock import Clock, HostClock
from client.backends.emulated.data import DATA_SHARE, EmulatedData
from client.backends.emulated.exercises import EmulatedExercises
from client.backends.emulated.program import EmulatedProgram
from client.backends.emulated.reference import Compute, Meter, thread_time, wall_time
from client.backends.emulated.schedule import Schedule, Span
from client.backends.emulated.spec import Emulation
from client.backends.emulated.timeline import Order, Timeline
from client.backends.exercises import Exercises
from client.backends.figures import Peaks, Traffic
from client.backends.recipe import DEFAULT_RECIPE, Recipe
from client.backends.throttle import Throttle
from client.errors import DeviceError
from client.model.graph import Segment
from client.model.losses import Labels

log = logging.getLogger(__name__)

LATE_SHARE = 0.1
"""Where results come later than the device's clock says by more than this part of its busy time,
it is said: measurements of this device are of the machine as well."""

LEAST_BUSY_S = 1.0
"""Before that, most of what is late is the first use of things."""


class EmulatedDevice(Device):
    """See ``Device``. ``clock`` and ``meter`` are replaced where tests make time themselves.

    All that the inner device does, it does in the timeline's thread. What programs and data hold
    is counted, and refused where the emulated device has no more.
    """

    has_queue: ClassVar[bool] = True

    def __init__(
        self,
        info: DeviceInfo,
        emulation: Emulation,
        inner: Device,
        clock: Clock | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.info, self.emulation, self.inner = info, emulation, inner
        self.traffic = Traffic()
        self._schedule = Schedule(emulation.compute_factor, emulation.heat)
        self._timeline = Timeline(
            emulation.name,
            self._schedule,
            clock or HostClock(),
            meter or (wall_time if inner.has_queue else thread_time),
            emulation.stall_after,
        )
        self._throttle = Throttle(self._timeline.clock.now_s)
        self._held: list[EmulatedProgram | EmulatedData] = []
        self._peak_nbytes = 0

    # -- Device ------------------------------------------------------------------------------
    @property
    def peak_nbytes(self) -> int:
        self._note_peak()  # an epoch's order, another program's gradients may have come
        return self._peak_nbytes

    @property
    def late_s(self) -> float:
        """How much later than its own clock says it was done with what was waited for, in all."""
        return self._timeline.late_s

    def load(self, x: NDArray[Any], y: Labels) -> DeviceData:
        room = int(DATA_SHARE * self._free_nbytes) if self.info.global_mem_nbytes else 0
        if not self.inner.has_queue:  # which keeps the host's own arrays: a device has copies
            x, y = x.copy(), y.copy()
        data: EmulatedData = self._timeline.aside(lambda: EmulatedData(self, x, y, room))
        if data.nbytes:
            self.call(lambda: None, up=data.nbytes)
        self._hold(data)
        return data

    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        inner: Program = self._timeline.aside(lambda: self.inner.compile(segment, capacity, recipe))
        program = EmulatedProgram(self, inner)
        free = self._free_nbytes
        if self.info.global_mem_nbytes and program.nbytes > free:
            needed = program.nbytes
            self._timeline.aside(inner.release)
            raise DeviceError(
                f"{self.info.name}: model '{segment.model.name}' with batches of {capacity}: needs "
                f"{needed:,} bytes, {free:,} are free: choose a smaller train.batch"
            )
        self._hold(program)
        return program

    def measure_peaks(self) -> Peaks:
        """The inner device's, as much lower as this one computes more slowly at the moment."""
        self.finish()
        peaks: Peaks = self._timeline.aside(self.inner.measure_peaks)
        factor = self._schedule.factor
        copies = tuple((size, speed / factor) for size, speed in peaks.copies)
        return Peaks(peaks.flops_per_s / factor, copies, f"{peaks.how}, ÷ {factor:g}")

    def largest_batch(self, segment: Segment, at_most: int, recipe: Recipe) -> int:
        found: int = self._timeline.aside(
            lambda: self.inner.largest_batch(segment, at_most, recipe)
        )
        return found

    def exercises(self) -> Exercises:
        return EmulatedExercises(self, self.inner)

    def throttle(self, limit_s: float) -> None:
        self._throttle.add(self._timeline.mark(), limit_s)

    def flush(self) -> None:
        """The timeline's thread waits for nobody."""

    def finish(self) -> None:
        self._timeline.mark().wait()
        self._throttle.idle()

    def close(self) -> None:
        self.finish()
        for held in list(self._held):
            held.release()
        self._timeline.aside(self.inner.close)
        self._timeline.close()
        busy_s, late_s = self._schedule.busy_s, self.late_s
        if busy_s > LEAST_BUSY_S and late_s > LATE_SHARE * busy_s:
            log.warning(
                "%s: was %.3f s late in %.3f busy seconds: the machine beneath is too slow or too "
                "busy for this emulation's times to hold",
                self.info.name,
                late_s,
                busy_s,
            )

    # -- for programs and data ------------------------------------------------------------------
    def enqueue(
        self,
        work: Callable[[], Any],
        compute: Compute | None = None,
        up: int = 0,
        ran: Callable[[Span], None] | None = None,
    ) -> None:
        """A command that nobody waits for; ``up``: bytes that pass the link before it."""
        self.traffic.upload_nbytes += up
        self._timeline.enqueue(self._order(work, compute, up, 0, ran))

    def call(
        self,
        work: Callable[[], Any],
        compute: Compute | None = None,
        up: int = 0,
        down: int = 0,
        ran: Callable[[Span], None] | None = None,
    ) -> Any:
        """A command that is waited for: its result. ``up``, ``down``: bytes that pass the link."""
        self.traffic.upload_nbytes += up
        self.traffic.download_nbytes += down
        return self._timeline.call(self._order(work, compute, up, down, ran))

    def exercise(
        self, work: Callable[[], Any], compute: Compute | None = None, up: int = 0, down: int = 0
    ) -> None:
        """The same for the probe: its bytes are nobody's, they do not count as traffic."""
        self._timeline.call(self._order(work, compute, up, down, None))

    def insert(self, work: Callable[[], Any]) -> None:
        """The host's own work, in its place among the commands; takes no time."""
        self._timeline.insert(work)

    def aside(self, work: Callable[[], Any]) -> Any:
        """Wait for the host's own work with the inner device, which takes no time here."""
        return self._timeline.aside(work)

    def release(self, held: EmulatedProgram | EmulatedData, work: Callable[[], Any]) -> None:
        """A program or data set gives back what it holds; again, where it has done so before."""
        self._note_peak()
        self._timeline.aside(work)
        if held in self._held:
            self._held.remove(held)

    def _order(
        self,
        work: Callable[[], Any],
        compute: Compute | None,
        up: int,
        down: int,
        ran: Callable[[Span], None] | None,
    ) -> Order:
        link = self.emulation.link
        transfer_s = link.upload.seconds(up) + link.download.seconds(down)
        return Order(self._finished(work), compute, transfer_s, ran)

    def _finished(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """The work, and the inner device's queue after it."""
        if not self.inner.has_queue:
            return work

        def run() -> Any:
            result = work()
            self.inner.finish()
            return result

        return run

    def _hold(self, held: EmulatedProgram | EmulatedData) -> None:
        self._held.append(held)
        self._note_peak()

    def _note_peak(self) -> None:
        self._peak_nbytes = max(self._peak_nbytes, self._held_nbytes)

    @property
    def _held_nbytes(self) -> int:
        return sum(held.nbytes for held in self._held)

    @property
    def _free_nbytes(self) -> int:
        return self.info.global_mem_nbytes - self._held_nbytes


def describe(emulation: Emulation, inner: DeviceInfo) -> DeviceInfo:
    """What the emulated device says of itself; it says no more of its speed than a real one."""
    memory_nbytes = emulation.memory_nbytes or inner.global_mem_nbytes
    largest_nbytes = min(inner.max_alloc_nbytes or memory_nbytes, memory_nbytes)
    return replace(
        inner,
        backend="emulated",
        name=emulation.name,
        kind="gpu",
        vendor="pocketfed",
        platform=f"emulated on {inner.backend}: {inner.name}",
        driver=f"emulation {emulation.digest} on {inner.driver}",
        compute_units=emulation.inner.cores or inner.compute_units,
        global_mem_nbytes=memory_nbytes,
        max_alloc_nbytes=largest_nbytes,
        unified_memory=False,
        remarks=(
            "an emulated device, its times are made up: "
            "unset POCKETFED_EMULATE to train without it",
        ),
        index=0,
    )
