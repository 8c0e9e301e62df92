"""Where activations, gradients and workspaces lie: one arena, planned by liveness.

Each region is live from the first launch that names it to the last one; regions whose lives
overlap get disjoint places. Greedy by size (Pisarchyk & Lee, "Efficient memory management for deep
neural net inference", arXiv 2001.03288): the largest region first, each at the lowest offset where
it meets no region that is live at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from client.backends.opencl.launch import Slot

ALIGNMENT_NBYTES = 64
"""Regions begin on cache lines, which also aligns the widest vectors."""

SLACK_NBYTES = 256
"""Before the first and after the last region: vector loads may reach over a row's ends."""


@dataclass(frozen=True)
class Arena:
    """Offsets in elements of 4 bytes, and the size of the whole."""

    offsets: Mapping[Slot, int]
    nbytes: int


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


def plan_arena(ranges: Mapping[Slot, tuple[int, int]]) -> Arena:
    """Place every slot; see the module's docstring."""
    placed: list[tuple[int, int, Slot]] = []  # begin, end in bytes
    stop = SLACK_NBYTES
    for slot in sorted(ranges, key=lambda s: -s.nbytes):
        first, last = ranges[slot]
        begin = SLACK_NBYTES
        size = -(-max(slot.nbytes, 1) // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
        for other_begin, other_end, other in placed:
            other_first, other_last = ranges[other]
            if other_last < first or last < other_first:
                continue
            if begin + size <= other_begin:
                break
            begin = max(begin, other_end)
        placed.append((begin, begin + size, slot))
        placed.sort(key=lambda p: p[0])
        stop = max(stop, begin + size)
    offsets = {slot: begin // 4 for begin, _, slot in placed}
    return Arena(offsets, stop + SLACK_NBYTES)
