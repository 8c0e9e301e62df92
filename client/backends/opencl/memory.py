"""Where activations, gradients and workspaces lie: an arena, planned by liveness.

Each region is live from the first launch that names it to the last one; regions whose lives
overlap get disjoint places. Greedy by size (Pisarchyk & Lee, "Efficient memory management for deep
neural net inference", arXiv 2001.03288): the largest region first, each at the lowest offset where
it meets no region that is live at the same time. Where a device has no allocation that large, the
arena is several buffers; kernels are given the buffer with each region, so that nothing else
changes.

The gradients of an operation's parameters are live from their first launch to the end of the step.
Until then their part of the gradients' buffer is as good a place as any, and costs nothing: a
region goes there where it fits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from client.backends.opencl.launch import Slot

ALIGNMENT_NBYTES = 64
"""Regions begin on cache lines, which also aligns the widest vectors."""

SLACK_NBYTES = 256
"""Before the first and after the last region: vector loads may reach over a row's ends."""


@dataclass(frozen=True)
class Place:
    """Which buffer, and where in it, in elements of 4 bytes.

    0 is the gradients' buffer; the arena's own are numbered from 1.
    """

    buffer: int
    offset: int


@dataclass(frozen=True)
class Gradients:
    """Bytes [begin, end) of the gradients' buffer, which are written by launch ``first`` first."""

    begin: int
    end: int
    first: int


@dataclass(frozen=True)
class Arena:
    """Where each region lies, and the size of each of the arena's own buffers in bytes."""

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


def plan_arena(
    ranges: Mapping[Slot, tuple[int, int]], most_nbytes: int, gradients: Sequence[Gradients] = ()
) -> Arena:
    """Place every slot; see the module's docstring.

    A slot that finds no place in a buffer of at most ``most_nbytes`` goes to the next one; one that
    is larger than that alone makes a larger buffer, which the device will refuse.
    """
    last = max((last for _, last in ranges.values()), default=0)
    buffers = [_Buffer(max((g.end for g in gradients), default=0))]
    for part in gradients:
        buffers[0].put(part.begin, part.end, (part.first, last))
    places: dict[Slot, Place] = {}
    for slot in sorted(ranges, key=lambda s: -s.nbytes):
        gaps = [buffer.gap_for(slot.nbytes, ranges[slot]) for buffer in buffers]
        fitting = (i for i, (_, end) in enumerate(gaps) if end <= buffers[i].limit)
        number = next(fitting, len(gaps))
        if number == len(gaps):
            buffers.append(_Buffer(most_nbytes - SLACK_NBYTES))
            gaps.append(buffers[number].gap_for(slot.nbytes, ranges[slot]))
        buffers[number].put(*gaps[number], ranges[slot])
        places[slot] = Place(number, gaps[number][0] // 4)
    return Arena(places, tuple(buffer.stop + SLACK_NBYTES for buffer in buffers[1:]))


class _Buffer:
    """One buffer while it is planned; regions end at ``limit`` bytes at the latest."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.stop = SLACK_NBYTES
        self._placed: list[tuple[int, int, tuple[int, int]]] = []  # begin, end, life, by begin

    def gap_for(self, nbytes: int, life: tuple[int, int]) -> tuple[int, int]:
        """The lowest (begin, end) that meets nothing that is live at the same time."""
        first, last = life
        begin = SLACK_NBYTES
        size = -(-max(nbytes, 1) // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        for other_begin, other_end, (other_first, other_last) in self._placed:
            if other_last < first or last < other_first:
                continue
            if begin + size <= other_begin:
                break
            begin = -(-max(begin, other_end) // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        return begin, begin + size

    def put(self, begin: int, end: int, life: tuple[int, int]) -> None:
        insort(self._placed, (begin, end, life), key=lambda p: p[0])
        self.stop = max(self.stop, end)
