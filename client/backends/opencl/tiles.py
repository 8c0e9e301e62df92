"""Which variant of a kernel: register tiles by class of device and by shape, nothing else.

A pure function, so that equal devices and shapes give equal arithmetic everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal


@dataclass(frozen=True)
class Target:
    """What kernels are generated for.

    ``vector``: floats in a vector; ``accumulators``: vectors of sums that fit a work-item's
    registers; ``group``: work-items in a work-group of small items; ``busy``: work-items that keep
    the device busy.
    """

    kind: Literal["cpu", "gpu"]
    vector: int
    accumulators: int
    group: int
    busy: int


def target_of(kind: str, native_vector: int) -> Target:
    """The target of a device by its kind and native float vector width.

    A CPU works in its native vectors, with 32 registers at 16 floats (AVX-512) and 16 below; the
    items of a group run one after the other. A GPU has scalar lanes; a vector of 4 is a wide load.
    """
    if kind == "cpu":
        vector = max(4, min(16, native_vector))
        return Target("cpu", vector, 24 if vector == 16 else 12, group=16, busy=32)
    return Target("gpu", 4, 16, group=64, busy=4096)


@dataclass(frozen=True)
class Tile:
    """Rows and columns (or channels and rows) of sums that one work-item holds."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def tile(
    rows: int, columns: int, accumulators: int, *, row_load: float = 0.0, column_load: float = 1.0
) -> Tile:
    """The tile of at most ``accumulators`` sums that covers rows x columns with the least work.

    A step of a tile costs one for each multiply-add, and so much for what it loads for each row
    and each column: nothing for a number that is broadcast from the cache. Tiles over the edge
    count in full.
    """

    def work(t: Tile) -> float:
        tiles = -(-rows // t.rows) * -(-columns // t.columns)
        return tiles * (t.rows * t.columns + row_load * t.rows + column_load * t.columns + 1)

    candidates = [
        Tile(r, c)
        for r, c in product(range(1, accumulators + 1), repeat=2)
        if r * c <= accumulators and r <= rows and c <= columns
    ]
    return min(candidates, key=work)
