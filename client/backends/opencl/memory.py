"""Where activations, gradients and workspaces lie: an arena, planned by liveness.

Each region is live from the first launch that names it to the last one; regions whose lives
overlap get disjoint places. Greedy by size (Pisarchyk & Lee, "Efficient memory management for deep
neural net inference", arXiv 2001.03288): the largest region first, each at the lowest offset where
it meets no region that is live at the same time. Where a device has no allocation that large, the
arena is several buffers; kernels are given the buffer with each region, so that nothing else
changes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from client.backends.opencl.launch import Slot

ALIGNMENT_NBYTES = 64
"""Regions begin on cache lines, which also aligns the widest vectors."""

SLACK_NBYTES = 256
"""Before the first and after the last region: vector loads may reach over a row's ends."""


@dataclass(frozen=True)
class Place:
    """Which of the arena's buffers, and where in it, in elements of 4 bytes."""

    buffer: int
    offset: int


@dataclass(frozen=True)
class Arena:
    """Where each region lies, and the size of each buffer in bytes."""

    places: Mapping[Slot, Place]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)


def live_ranges(
    launches: Iterable[Iterable[Slot]], pinned: Iterable[Slot]
) -> dict[Slot, tuple[int, int]]:
    """First and last use of each slot, as numbers of launches; pinned slots live throughout."""
    ranges: dict[Slot, tuple[int, int]] = {}
    end = 0
    for end, slots in enumerate(launches):
        for slot in slots:
            first, _ = ranges.get(slot, (end, end))
            ranges[slot] = (first, end)
    ranges.update(dict.fromkeys(pinned, (0, end)))
    return ranges


def plan_arena(ranges: Mapping[Slot, tuple[int, int]], most_nbytes: int) -> Arena:
    """Place every slot; see the module's docstring.

    A slot that finds no place in a buffer of at most ``most_nbytes`` goes to the next one; one that
    is larger than that alone makes a larger buffer, which the device will refuse.
    """
    buffers: list[_Buffer] = []
    places: dict[Slot, Place] = {}
    for slot in sorted(ranges, key=lambda s: -s.nbytes):
        gaps = [buffer.gap_for(slot, ranges) for buffer in buffers]
        number = next(
            (i for i, (_, end) in enumerate(gaps) if end + SLACK_NBYTES <= most_nbytes), len(gaps)
        )
        if number == len(gaps):
            buffers.append(_Buffer())
            gaps.append(buffers[number].gap_for(slot, ranges))
        buffers[number].put(slot, *gaps[number])
        places[slot] = Place(number, gaps[number][0] // 4)
    return Arena(places, tuple(buffer.stop + SLACK_NBYTES for buffer in buffers))


class _Buffer:
    """One buffer of the arena while it is planned."""

    def __init__(self) -> None:
        self.stop = SLACK_NBYTES
        self._placed: list[tuple[int, int, Slot]] = []  # begin, end in bytes, by begin

    def gap_for(self, slot: Slot, ranges: Mapping[Slot, tuple[int, int]]) -> tuple[int, int]:
        """The lowest (begin, end) that meets no slot that is live at the same time."""
        first, last = ranges[slot]
        begin = SLACK_NBYTES
        size = -(-max(slot.nbytes, 1) // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        for other_begin, other_end, other in self._placed:
            other_first, other_last = ranges[other]
            if other_last < first or last < other_first:
                continue
            if begin + size <= other_begin:
                break
            begin = max(begin, other_end)
        return begin, begin + size

    def put(self, slot: Slot, begin: int, end: int) -> None:
        insort(self._placed, (begin, end, slot), key=lambda p: p[0])
        self.stop = max(self.stop, end)
