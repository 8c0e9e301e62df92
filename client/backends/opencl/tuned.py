"""What tuning found on a device: kept in the cache folder as it comes, and used by each compile.

A file for each device, driver, platform and set of kernels. Beside it, while a variant is being
tried, lies a marker with the variant's name: one that is found later belongs to a variant that took
the process down.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import kernels
from client.backends.device_info import DeviceInfo
from client.backends.opencl.launch import OPTIONS
from client.backends.opencl.tiles import Target
from client.cache import cache_dir, write_atomically
from client.errors import ConfigError
from client.fields import parse

log = logging.getLogger(__name__)

WORTH = 0.97
"""A variant replaces another one if it takes at most this share of its time."""


@dataclass
class Tuned:
    """Choices for one device, and what they rest on.

    ``vector``, ``accumulators``, ``group``: see ``Target``; 0 as long as they are not tuned.
    ``tiles``: rows and columns by the choice's name. ``costly``: choices whose launches stood for
    all kernels while the first three were tuned. ``measured``: of each variant, its time as a
    share of the time of what is shipped. ``failed``: variants that are not tried again, and why.
    """

    device: str = ""
    vector: int = 0
    accumulators: int = 0
    group: int = 0
    tiles: dict[str, tuple[int, int]] = field(default_factory=dict)
    costly: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vector not in (0, 1, 2, 4, 8, 16):
            raise ConfigError(f"vector: found {self.vector}, allowed: 1, 2, 4, 8, 16")
        if any(min(tile) < 1 for tile in self.tiles.values()):
            raise ConfigError("tiles: all numbers must be positive")

    @property
    def count(self) -> int:
        """Choices that differ from what is shipped."""
        return len(self.tiles) + (self.vector > 0)

    def target(self, shipped: Target) -> Target:
        """The shipped target with these choices in place."""
        if not self.vector:
            return replace(shipped, tiles=self.tiles)
        return replace(
            shipped,
            vector=self.vector,
            accumulators=self.accumulators,
            group=self.group,
            tiles=self.tiles,
        )


def path_for(info: DeviceInfo) -> Path:
    """Where the choices for a device are kept."""
    name = hashlib.blake2b(digest_size=16)
    for part in (kernels.digest(), OPTIONS, info.description):
        name.update(part.encode() + b"\0")
    return cache_dir() / "tuned" / f"{name.hexdigest()}.json"


def load(info: DeviceInfo) -> Tuned:
    """What is kept for a device; nothing where there is none, or where it cannot be used."""
    path = path_for(info)
    try:
        text = path.read_text()
    except FileNotFoundError:
        return Tuned(info.description)
    except OSError as e:
        log.warning("tuning results cannot be read, defaults are used: %s: %s", path, e.strerror)
        return Tuned(info.description)
    try:
        return parse(Tuned, json.loads(text), str(path))
    except (ValueError, ConfigError) as e:
        log.warning("%s: tuning results are damaged, defaults are used: %s", path, e)
        return Tuned(info.description)


def save(info: DeviceInfo, tuned: Tuned) -> None:
    """Keep what was found so far."""
    write_atomically(path_for(info), json.dumps(asdict(tuned), indent=1).encode())


def marker(info: DeviceInfo) -> Path:
    """The file that names the variant being tried."""
    return path_for(info).with_suffix(".trying")


@contextmanager
def trying(info: DeviceInfo, variant: str) -> Iterator[None]:
    """The marker is there while the enclosed work runs, and stays if the process ends in it."""
    path = marker(info)
    write_atomically(path, variant.encode())
    try:
        yield
    finally:
        path.unlink()


def left_over(info: DeviceInfo) -> str:
    """The variant in which an earlier process ended, or nothing; its marker is removed."""
    path = marker(info)
    try:
        variant = path.read_text()
    except FileNotFoundError:
        return ""
    path.unlink()
    return variant


def describe(info: DeviceInfo, shipped_for: str) -> str:
    """One line: whether kernels are tuned here, or which defaults they use."""
    tuned = load(info)
    if not tuned.measured:
        return f"kernels are those for {shipped_for}"
    kept = f"{len(tuned.measured)} variants measured, {tuned.count} choices changed"
    skipped = f", {len(tuned.failed)} skipped that failed" if tuned.failed else ""
    return f"kernels are tuned: {kept}{skipped}"
