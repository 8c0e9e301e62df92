"""Where a round's time went: disjoint phases on one clock, and what stays unattributed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field

PHASES = (
    "decode",  # message -> arrays and task
    "handover",  # to the device worker and back, waiting for it; nothing of its own work
    "plan",  # choosing the processor: measurements, prediction, decision
    "build",  # opening the device, compiling, parity check
    "data",  # bringing the node's data to memory and to the device
    "upload",  # parameters host -> device
    "train",  # gather, forward, loss, backward, update; waiting for the queue
    "download",  # parameters device -> host
    "evaluate",  # on the node's own held-out examples
    "encode",  # arrays and results -> message
)
"""Names of phases in the order in which a round goes through them."""

on_phase: ContextVar[Callable[[str], None] | None] = ContextVar("on_phase", default=None)
"""Told the name of each phase as it begins, where somebody watches in the same process."""


@dataclass(frozen=True)
class Timing:
    """A node's round in seconds: ``phases`` are disjoint; what is between them is unattributed."""

    wall_s: float
    phases: dict[str, float]

    @property
    def unattributed_s(self) -> float:
        return self.wall_s - sum(self.phases.values())


class _Phase(AbstractContextManager[None]):
    """One interval on a round's clock. It begins with its first instruction and ends with its
    last, so that short rounds do not lose a share of their time between phases."""

    __slots__ = ("_began_s", "_clock", "_name")

    def __init__(self, clock: RoundClock, name: str) -> None:
        self._began_s = time.perf_counter()
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        clock, name = self._clock, self._name
        if name not in PHASES:
            raise ValueError(f"unknown phase {name!r}")
        if clock.open is not None:
            raise RuntimeError(f"phase {name!r} inside phase {clock.open!r}: phases are disjoint")
        clock.open = name
        listener = on_phase.get()
        if listener is not None:
            listener(name)

    def __exit__(self, *error: object) -> None:
        phases, name = self._clock.phases, self._name
        self._clock.open = None
        before_s = phases.get(name, 0.0)
        phases[name] = before_s + time.perf_counter() - self._began_s


@dataclass
class RoundClock:
    """Measures one round. Phases may come several times (they add up) but never nest.

    ``open``: the phase that is going on.
    """

    start_s: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    open: str | None = None

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time the enclosed work as part of phase ``name``."""
        return _Phase(self, name)

    def absorb(self, call_s: float, there: Timing) -> None:
        """Add a call to another process, which took ``call_s`` here and measured itself there.

        Its phases become phases of this round, what it could not attribute stays unattributed,
        and the rest of the call is ``handover``. Durations alone are used, no points in time.
        """
        if self.open is not None:
            raise RuntimeError(f"a call inside phase {self.open!r}: phases are disjoint")
        for name, seconds in (*there.phases.items(), ("handover", call_s - there.wall_s)):
            if name not in PHASES:
                raise ValueError(f"unknown phase {name!r}")
            self.phases[name] = self.phases.get(name, 0.0) + seconds

    def stop(self) -> Timing:
        """The timing from ``start_s`` until now."""
        return Timing(time.perf_counter() - self.start_s, dict(self.phases))
