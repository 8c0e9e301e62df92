"""An emulated device's queue: a thread that carries commands out, and a clock that is slower.

The host enqueues and goes on. The thread carries commands out in order, as soon as it can, and
notes when each of them ends on the device's own clock (``Schedule``). Whoever waits for a command
waits until it was carried out, and then until the moment that the device's clock says. So nothing
that delays the thread shows, as long as it is ahead of that clock; where it is not, ``late_s`` says
by how much.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from client.backends.emulated.clock import Clock
from client.backends.emulated.reference import Compute, Meter
from client.backends.emulated.schedule import Schedule, Span


class Ticket:
    """A command that somebody may wait for, or a mark between commands."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._carried_out = threading.Lock()
        self._carried_out.acquire()
        self.end_s = float("-inf")  # on the device's clock; only where it is over
        self.result: Any = None
        self.error: Exception | None = None

    def carried_out(self) -> None:
        """The thread is done with it."""
        self._carried_out.release()

    def done(self) -> bool:
        """Whether the command is over; returns at once."""
        if not self._carried_out.acquire(blocking=False):
            return False
        self._carried_out.release()
        return self._timeline.clock.now_s() >= self.end_s

    def wait(self) -> None:
        """Until the command is over; raises its error, or one of a command before it."""
        with self._carried_out:
            pass
        self._timeline.reached(self.end_s)
        error = self.error or self._timeline.take_error()
        if error is not None:
            raise error


class _Outcome:
    """A context that hands its block's result or error to a ticket, or an error to the timeline."""

    def __init__(self, timeline: Timeline, ticket: Ticket | None) -> None:
        self._timeline, self._ticket = timeline, ticket

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._ticket is not None:
            self._ticket.error = error
        else:
            self._timeline.keep_error(error)
        return True


@dataclass(frozen=True, slots=True)
class Order:
    """A command: what is to be done, and what it costs on the device's clock.

    ``compute``: None for a command that is nothing but a transfer. ``transfer_s``: the link's time.
    ``ran``: told in the thread where it lies on the clock.
    """

    work: Callable[[], Any]
    compute: Compute | None = None
    transfer_s: float = 0.0
    ran: Callable[[Span], None] | None = None


class Timeline:
    """See the module. ``stall_after``: so many commands are carried out, the next never ends."""

    def __init__(
        self, name: str, schedule: Schedule, clock: Clock, meter: Meter, stall_after: int | None
    ) -> None:
        self.schedule, self.clock = schedule, clock
        self.late_s = 0.0
        self.stalled = threading.Event()
        self._meter, self._stall_after = meter, stall_after
        self._commands = 0
        self._error: Exception | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    # -- the host's side ---------------------------------------------------------------------
    def enqueue(self, order: Order) -> None:
        """Returns at once; an error is raised by whatever waits next."""
        arrived_s = self.clock.now_s()
        self._queue.put(lambda: self._carry_out(order, arrived_s, None))

    def call(self, order: Order) -> Any:
        """Enqueue and wait; the work's result."""
        arrived_s, ticket = self.clock.now_s(), Ticket(self)
        self._queue.put(lambda: self._carry_out(order, arrived_s, ticket))
        ticket.wait()
        return ticket.result

    def aside(self, work: Callable[[], Any]) -> Any:
        """Wait for work of the host's that needs the inner device: no command, it takes no time."""
        ticket = Ticket(self)

        def run() -> None:
            with _Outcome(self, ticket):
                ticket.result = work()
            ticket.carried_out()

        self._queue.put(run)
        ticket.wait()
        return ticket.result

    def insert(self, work: Callable[[], Any]) -> None:
        """Work of the host's in its place among the commands: it takes no time; returns at once."""

        def run() -> None:
            with _Outcome(self, None):
                work()

        self._queue.put(run)

    def mark(self) -> Ticket:
        """The end of what was enqueued so far."""
        ticket = Ticket(self)

        def reached() -> None:
            ticket.end_s = self.schedule.free_s
            ticket.carried_out()

        self._queue.put(reached)
        return ticket

    def close(self) -> None:
        """End the thread, when all commands are carried out."""
        self._queue.put(None)
        self._thread.join()

    def reached(self, end_s: float) -> None:
        """Wait until the device's clock says that a command which was carried out is over."""
        if end_s == float("-inf"):
            return
        self.late_s += max(0.0, self.clock.now_s() - end_s)
        self.clock.wait_until(end_s)

    def take_error(self) -> Exception | None:
        """That of an enqueued command, once."""
        error, self._error = self._error, None
        return error

    # -- the thread's side -------------------------------------------------------------------
    def keep_error(self, error: Exception) -> None:
        """The first of several is told: others follow from it."""
        self._error = self._error or error

    def _serve(self) -> None:
        with np.errstate(all="ignore"):  # a device does not warn
            while (work := self._queue.get()) is not None:
                work()

    def _carry_out(self, order: Order, arrived_s: float, ticket: Ticket | None) -> None:
        if self._commands == self._stall_after:
            self.stalled.set()
            threading.Event().wait()  # for ever
        self._commands += 1
        with _Outcome(self, ticket):
            result, seconds = self._meter(order.work)
            reference_s = order.compute.reference_s(seconds) if order.compute else 0.0
            prepare_s = seconds if reference_s is None else 0.0
            span = self.schedule.add(arrived_s, reference_s or 0.0, order.transfer_s, prepare_s)
            if order.ran is not None:
                order.ran(span)
            if ticket is not None:
                ticket.result, ticket.end_s = result, span.end_s
        if ticket is not None:
            ticket.carried_out()
