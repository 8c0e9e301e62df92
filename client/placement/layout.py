"""Where a network runs: on one device, cut over several, or every batch split over several. Pure.

A model is a chain of unit-blocks (see ``client.model.graph``); a part is a run of them on one
device, which it names by ``DeviceInfo.key``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, isfinite
from typing import Literal

from client.model.graph import Model, Segment

LayoutKind = Literal["whole", "cut", "split"]

SHARES_TOLERANCE = 1e-6
"""Shares are written down with so many digits: by so much their sum may miss 1."""


@dataclass(frozen=True)
class Part:
    """Unit-blocks [first, stop) on a device, with ``share`` of each batch's examples."""

    device: str
    first: int
    stop: int
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise ValueError(f"a part has no blocks [{self.first}, {self.stop})")
        if not (isfinite(self.share) and 0 < self.share <= 1):
            raise ValueError(f"a part's share of a batch is {self.share}, must be in (0, 1]")

    @property
    def backend(self) -> str:
        """Name of the device's backend."""
        return self.device.partition("|")[0]

    def segment(self, model: Model) -> Segment:
        """Its blocks, to be compiled."""
        return Segment(model, self.first, self.stop)


@dataclass(frozen=True)
class Layout:
    """The parts of one network; ValueError where they are none of these:

    whole: one part with all blocks. cut: two or more parts, consecutive runs of all blocks in
    order, each with whole batches; neighbours may be on one device. split: two or more parts on
    different devices, each with all blocks, shares that add up to 1; the first one owns the
    optimizer's state.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts or self.parts[0].first != 0:
            raise ValueError("a layout's first part must begin with block 0")
        if self.kind == "split":
            self._check_split()
            return
        for part in self.parts:
            if part.share != 1:
                raise ValueError(f"a part of a {self.kind} layout has share {part.share}, not 1")
        for before, after in pairwise(self.parts):
            if after.first != before.stop:
                raise ValueError(
                    f"a cut layout's part begins with block {after.first}, the one before it ends "
                    f"at {before.stop}"
                )

    def _check_split(self) -> None:
        devices = [part.device for part in self.parts]
        if len(set(devices)) < len(devices):
            raise ValueError(f"a split layout names a device twice: {', '.join(devices)}")
        if any((part.first, part.stop) != (0, self.blocks) for part in self.parts):
            raise ValueError("each part of a split layout must have all blocks")
        total = sum(part.share for part in self.parts)
        if abs(total - 1) > SHARES_TOLERANCE:
            raise ValueError(f"the shares of a split layout add up to {total:g}, not to 1")

    @classmethod
    def whole(cls, device: str, blocks: int) -> Layout:
        """All of the network's blocks on one device."""
        return cls((Part(device, 0, blocks),))

    @classmethod
    def cut(cls, devices: Sequence[str], stops: Sequence[int]) -> Layout:
        """Each device's blocks end at its stop; the last stop is the number of blocks."""
        firsts = (0, *stops[:-1])
        parts = zip(devices, firsts, stops, strict=True)
        return cls(tuple(Part(device, first, stop) for device, first, stop in parts))

    @classmethod
    def split(cls, devices: Sequence[str], shares: Sequence[float], blocks: int) -> Layout:
        """All blocks on each device, each batch divided by shares."""
        pairs = zip(devices, shares, strict=True)
        return cls(tuple(Part(device, 0, blocks, share) for device, share in pairs))

    @property
    def kind(self) -> LayoutKind:
        """Which of the three it is, told by where the second part begins."""
        if len(self.parts) == 1:
            return "whole"
        return "split" if self.parts[1].first == 0 else "cut"

    @property
    def blocks(self) -> int:
        """Number of the network's unit-blocks."""
        return self.parts[-1].stop

    @property
    def devices(self) -> tuple[str, ...]:
        """Keys of its devices, each once, in order."""
        return tuple(dict.fromkeys(part.device for part in self.parts))

    @property
    def shares(self) -> tuple[float, ...]:
        """Of each batch, by part."""
        return tuple(part.share for part in self.parts)

    def check(self, model: Model) -> None:
        """ValueError where the layout is of another number of blocks."""
        if self.blocks != len(model.block_names):
            raise ValueError(
                f"the layout has {self.blocks} blocks, model '{model.name}' has "
                f"{len(model.block_names)}"
            )

    def describe(self, block_names: Sequence[str]) -> str:
        """In a line: "opencl", "opencl [conv1..fc1] | numpy [fc2..fc3]", "opencl 0.7 + numpy 0.3".

        Devices by their backends; by their names as well where one backend has several of them.
        """
        names = [self._name(part) for part in self.parts]
        if self.kind == "whole":
            return names[0]
        if self.kind == "split":
            return " + ".join(
                f"{name} {part.share:.3g}" for name, part in zip(names, self.parts, strict=True)
            )
        runs = (block_names[part.first : part.stop] for part in self.parts)
        return " | ".join(
            f"{name} [{run[0] if len(run) == 1 else f'{run[0]}..{run[-1]}'}]"
            for name, run in zip(names, runs, strict=True)
        )

    def _name(self, part: Part) -> str:
        several = {d for d in self.devices if d.partition("|")[0] == part.backend} != {part.device}
        return f"{part.backend} ({part.device.split('|')[3]})" if several else part.backend


def slices(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """How many of ``count`` examples each part has, one after the other; some perhaps 0.

    Rounded where one ends and the next begins, so that they add up to ``count``.
    """
    if count < 0 or abs(sum(shares) - 1) > SHARES_TOLERANCE:
        raise ValueError(f"{count} examples by shares {', '.join(f'{s:g}' for s in shares)}")
    ends, total = [0], 0.0
    for share in shares[:-1]:
        total += share
        ends.append(min(count, floor(count * total + 0.5)))
    ends.append(count)
    return tuple(after - before for before, after in pairwise(ends))
