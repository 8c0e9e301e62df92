"""Bounds the work in flight on a device with a queue, from what steps have taken so far."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Marker(Protocol):
    """The end of a step on the device."""

    def done(self) -> bool:
        """Whether all work up to here is complete; returns at once."""

    def wait(self) -> None:
        """Until all work up to here is complete."""


class Throttle:
    """Keeps at most about ``limit_s`` of steps in flight; a step is what lies between two markers.

    The first step is waited for; after that, whenever it waits, it learns how long each of the
    steps took that completed since the last wait.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pending: deque[Marker] = deque()
        self._completed = 0
        self._since_s = clock()  # _completed steps were done from here on
        self._step_s: float | None = None

    def idle(self) -> None:
        """Nothing is in flight any more."""
        self._pending.clear()

    def add(self, marker: Marker, limit_s: float) -> None:
        """A step was enqueued, up to ``marker``; wait until few enough are in flight."""
        if not self._pending:
            self._completed, self._since_s = 0, self._clock()
        self._pending.append(marker)
        while self._pending and self._pending[0].done():
            self._pending.popleft()
            self._completed += 1
        while len(self._pending) > self._allowed(limit_s):
            self._pending.popleft().wait()
            now_s = self._clock()
            self._step_s = (now_s - self._since_s) / (self._completed + 1)
            self._completed, self._since_s = 0, now_s

    def _allowed(self, limit_s: float) -> int:
        return 0 if self._step_s is None else int(limit_s / max(self._step_s, 1e-9))
