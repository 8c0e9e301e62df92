"""Which variant of a kernel: vectors, work-groups and register tiles, by device and shape.

What was measured on the device (see ``tuned``) comes first, then what is shipped: for the device,
its vendor, its class. Pure functions, so that equal devices and shapes give equal arithmetic
everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from client.backends.device_info import DeviceInfo


@dataclass(frozen=True)
class Target:
    """What kernels are generated for.

    ``vector``: floats in a vector; ``accumulators``: vectors of sums that fit a work-item's
    registers; ``group``: work-items in a work-group of small items; ``busy``: work-items that keep
    the device busy; ``tiles``: rows and columns of tuned tiles, by the choice's name (see
    ``Lowering.tile``).
    """

    kind: Literal["cpu", "gpu"]
    vector: int
    accumulators: int
    group: int
    busy: int
    tiles: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"vectors of {self.vector}, {self.accumulators} sums, groups of {self.group}"

    @property
    def large_group(self) -> int:
        """Work-items in a group of large items: one on a CPU, which runs them one by one."""
        return 1 if self.kind == "cpu" else self.group

    @property
    def middling_group(self) -> int:
        """Work-items in a group of items that are neither small nor large."""
        return min(4, self.group) if self.kind == "cpu" else self.group

    def block(self, group: int) -> tuple[int, int]:
        """A group of so many items in two dimensions.

        Neighbours on a GPU share what they read in both; on a CPU all go along the second.
        """
        across = 1 if self.kind == "cpu" else 8
        return across, group // across

    @property
    def busy_large(self) -> int:
        """Large work-items that keep the device busy."""
        return self.busy // 4 if self.kind == "cpu" else self.busy

    @property
    def rows_first(self) -> bool:
        """Whether tiles of a product are better visited down its rows than along its columns."""
        return self.kind == "cpu"


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
class Shipped:
    """Numbers of a target that were measured on a device, for it or for its vendor's others."""

    level: Literal["device", "vendor"]
    begins: str  # how the device's name, or its vendor's, begins
    vector: int
    accumulators: int
    group: int


SHIPPED: tuple[Shipped, ...] = ()
"""Devices before vendors: the first that fits is taken, and the class where none does.

Empty as long as nowhere `pocketfed tune` found a target that beats the class's: a row is what it
prints on the device, entered here.
"""


def _shipped(info: DeviceInfo) -> Shipped | None:
    names = {"device": info.name, "vendor": info.vendor}
    return next((s for s in SHIPPED if names[s.level].startswith(s.begins)), None)


def shipped_target(info: DeviceInfo, native_vector: int) -> Target:
    """The target that is shipped for a device, its vendor, or its class."""
    target = target_of(info.kind, native_vector)
    found = _shipped(info)
    if found is None:
        return target
    return replace(target, vector=found.vector, accumulators=found.accumulators, group=found.group)


def shipped_for(info: DeviceInfo) -> str:
    """What the shipped target of a device was made for."""
    found = _shipped(info)
    return f"the class {info.kind}" if found is None else f"the {found.level} {found.begins}"


@dataclass(frozen=True)
class Tile:
    """Rows and columns (or channels and rows) of sums that one work-item holds."""

    rows: int
    columns: int
    choice: str = field(default="", compare=False)  # which one it was, where it could be tuned

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Cover:
    """What tiles have to cover: rows x columns, with at most so many sums each.

    A step of a tile costs one for each multiply-add, and so much for what it loads for each row
    and each column: nothing for a number that is broadcast from the cache.
    """

    rows: int
    columns: int
    accumulators: int
    row_load: float = 0.0
    column_load: float = 1.0

    def work(self, t: Tile) -> float:
        """Cost of all tiles; those over the edge count in full."""
        tiles = -(-self.rows // t.rows) * -(-self.columns // t.columns)
        step = t.rows * t.columns + self.row_load * t.rows + self.column_load * t.columns + 1
        return tiles * step

    def tiles(self, accumulators: int) -> list[Tile]:
        """All tiles of at most so many sums, the least work first."""
        rows, columns = (range(1, min(accumulators, n) + 1) for n in (self.rows, self.columns))
        found = [Tile(r, c) for r, c in product(rows, columns) if r * c <= accumulators]
        return sorted(found, key=self.work)

    @property
    def best(self) -> Tile:
        """The tile with the least work."""
        return self.tiles(self.accumulators)[0]


def tile(
    rows: int, columns: int, accumulators: int, *, row_load: float = 0.0, column_load: float = 1.0
) -> Tile:
    """The tile with the least work, see ``Cover``."""
    return Cover(rows, columns, accumulators, row_load, column_load).best
