"""How long a command takes on the inner device, whatever else the machine does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

Meter = Callable[[Callable[[], Any]], tuple[Any, float]]
"""Carries work out: (result, seconds that it took)."""


def thread_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """Processor time of this thread, for an inner device that computes in it.

    Time in which the thread waited for a processor does not count. Where matrix products have
    threads of their own, this thread has a share of the work like theirs.
    """
    began_s = time.thread_time()
    result = work()
    return result, time.thread_time() - began_s


def wall_time(work: Callable[[], Any]) -> tuple[Any, float]:
    """From begin to end, for an inner device that computes in threads or hardware of its own."""
    began_s = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began_s


class References:
    """The calm minimum: of all times that a command was carried out, the shortest.

    ``prepares``: on this inner device, what a command needs is built when it is first used: such a
    time tells nothing of how long the command takes.
    """

    def __init__(self, prepares: bool) -> None:
        self._prepares = prepares
        self._ready: set[Hashable] = set()
        self._shortest: dict[Hashable, float] = {}

    def of(self, key: Hashable, seconds: float, pieces: Iterable[Hashable] = ()) -> float | None:
        """The reference of a command that took ``seconds`` now; None: it tells nothing of it.

        Commands with one key take as long. ``pieces``: what is prepared where it is used first.
        """
        new = set(pieces) - self._ready
        if new and self._prepares:
            self._ready |= new
            return None
        shortest = min(seconds, self._shortest.get(key, seconds))
        self._shortest[key] = shortest
        return shortest


@dataclass(frozen=True, slots=True)
class Compute:
    """What a command computes: see ``References.of``."""

    references: References
    key: Hashable
    pieces: tuple[Hashable, ...] = ()

    def reference_s(self, seconds: float) -> float | None:
        """Of a command that took ``seconds`` now."""
        return self.references.of(self.key, seconds, self.pieces)
