"""Timing of rivals on one machine: groups of steps, taken in turn, and compared pair by pair.

On a machine that others share, or whose clock moves with its temperature, two measurements are
comparable only if they are neighbours in time. So the rivals' groups alternate (a, b, a, b, …), a
ratio is formed within each turn, and the median of those ratios is the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

MIN_GROUP_S = 0.05
"""A group lasts at least this long: clock resolution and the wait at its end are small in it."""

MAX_STEPS = 4096
"""Bound on the steps of a group, however short a step is."""

PAUSE_S = 0.2
"""Rest before each group. OpenBLAS's idle worker threads go on spinning for some 0.13 s after a
product and take the cores from whoever comes next: without the rest, PyTorch's step came out at
two to ten times its time."""

LEAD_IN_S = 0.02
"""Untimed steps after the rest: caches and clock are as in the midst of training."""

Run = Callable[[int], None]
"""Does a number of steps and waits until the last one is done."""


def steps_per_group(run: Run, clock: Callable[[], float] = time.perf_counter) -> int:
    """The steps of one group, a power of two: doubled until they last ``MIN_GROUP_S``.

    The growing groups are the rival's warm-up as well. Each is run twice and the shorter time
    counts, so that one interruption does not end the growth.
    """
    steps = 1
    while steps < MAX_STEPS:
        if min(_seconds(run, steps, clock) for _ in range(2)) >= MIN_GROUP_S:
            break
        steps *= 2
    return steps


def interleaved(
    runs: Sequence[Run],
    groups: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> list[list[float]]:
    """Seconds a step, for each rival and each of its ``groups`` groups, taken in turn."""
    steps = []
    for run in runs:
        sleep(PAUSE_S)
        steps.append(steps_per_group(run, clock))
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(groups + 1):
        for run, count, taken in zip(runs, steps, times, strict=True):
            sleep(PAUSE_S)
            run(max(1, round(count * LEAD_IN_S / MIN_GROUP_S)))
            step_s = _seconds(run, count, clock) / count
            if turn > 0:  # the first turn is warm-up: only now do the rivals share the machine
                taken.append(step_s)
    return times


def ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    """Ours as a multiple of the peer's, turn by turn."""
    return [a / b for a, b in zip(ours, peer, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; all equal where there is one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _seconds(run: Run, steps: int, clock: Callable[[], float]) -> float:
    begin = clock()
    run(steps)
    return clock() - begin
