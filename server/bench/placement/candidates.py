"""Which layouts are timed to find the best one there is: the oracle. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations, product

from client.placement.layout import Layout

ALL_BELOW = 8
"""Of a chain of fewer unit-blocks, every placement is timed."""

SHARES = tuple(round(0.1 * i, 1) for i in range(1, 10))


def singles(devices: Sequence[str], blocks: int) -> list[Layout]:
    """The whole network on each device."""
    return [Layout.whole(device, blocks) for device in devices]


def cuts(devices: Sequence[str], blocks: int) -> list[Layout]:
    """Every placement that uses several devices where blocks are few, else every single cut."""
    if blocks < ALL_BELOW:
        every = (placed(choice) for choice in product(devices, repeat=blocks))
        return [layout for layout in every if layout.kind == "cut"]
    return [
        Layout.cut(pair, (stop, blocks))
        for pair in permutations(devices, 2)
        for stop in range(1, blocks)
    ]


def placed(devices: Sequence[str]) -> Layout:
    """The layout of a device for each unit-block: neighbours on one device are one part."""
    stops = [i for i in range(1, len(devices)) if devices[i] != devices[i - 1]] + [len(devices)]
    return Layout.cut([devices[stop - 1] for stop in stops], stops)


def splits(owner: str, other: str, blocks: int) -> list[Layout]:
    """Each batch over both devices, a tenth to nine tenths of it on the owner."""
    return [Layout.split((owner, other), (share, round(1 - share, 1)), blocks) for share in SHARES]


def distinct(layouts: Iterable[Layout]) -> list[Layout]:
    """Each once, in order."""
    return list(dict.fromkeys(layouts))
