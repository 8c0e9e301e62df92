"""Times layouts until the best one is known: the oracle; and rivals afresh, in turn."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Protocol

from client.errors import DeviceError
from client.placement.layout import Layout
from server.bench import measure

GROUP_S = 0.015
GROUPS = 3
MOST_STEPS = 64
"""The shortest of so many groups of so long counts: what else the machine does can only add."""

HOPELESS = 2.0
"""A layout whose second step takes so many times the best one's is left at that."""

FRESH_GROUPS = 9

log = logging.getLogger(__name__)


class Steps(Protocol):
    """Training steps of a layout."""

    def run(self, steps: int) -> None:
        """So many steps, ended by one wait."""

    def release(self) -> None:
        """Free what they hold."""


Make = Callable[[Layout], Steps]


class Scan:
    """Seconds of a step of every layout that was timed. ``make`` builds a layout's steps.

    A layout that cannot be trained (a batch that must not be split, too little memory) is logged
    and has no time.
    """

    def __init__(self, make: Make, clock: Callable[[], float] = perf_counter) -> None:
        self._make, self._clock = make, clock
        self.step_s: dict[Layout, float] = {}

    def best(self, count: int) -> list[Layout]:
        """So many with the shortest steps; DeviceError where nothing could be trained."""
        if not self.step_s:
            raise DeviceError("no layout could be trained: the warnings above say why")
        return sorted(self.step_s, key=lambda layout: self.step_s[layout])[:count]

    def time(self, layouts: Iterable[Layout]) -> None:
        """Time those that were not timed yet."""
        for layout in layouts:
            if layout not in self.step_s:
                try:
                    steps = self._make(layout)
                except DeviceError as e:
                    log.warning("a layout is left out: %s", e)
                    continue
                try:
                    self.step_s[layout] = self._time(steps)
                finally:
                    steps.release()

    def fresh(self, layouts: Sequence[Layout]) -> dict[Layout, float]:
        """The median of groups that take turns, of steps that are built anew."""
        built = [self._make(layout) for layout in layouts]
        try:
            times = measure.interleaved(
                [steps.run for steps in built], FRESH_GROUPS, self._clock, lambda seconds: None
            )
        finally:
            for steps in built:
                steps.release()
        return {k: statistics.median(t) for k, t in zip(layouts, times, strict=True)}

    def _time(self, steps: Steps) -> float:
        steps.run(1)  # warms up: pages, caches, compilers that wait for the first launch
        first_s = self._seconds(steps, 1)
        if self.step_s and first_s > HOPELESS * min(self.step_s.values()):
            return first_s
        repeats = min(max(1, math.ceil(GROUP_S / max(first_s, 1e-9))), MOST_STEPS)
        return min(self._seconds(steps, repeats) / repeats for _ in range(GROUPS))

    def _seconds(self, steps: Steps, count: int) -> float:
        began = self._clock()
        steps.run(count)
        return self._clock() - began
