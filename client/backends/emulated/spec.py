"""What an emulated device is to be like: a YAML file as frozen dataclasses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from client.errors import ConfigError
from client.fields import parse, read_yaml


@dataclass(frozen=True)
class Inner:
    """The device that really computes: a backend, and part of the device's name where it has many.

    ``cores``: of an OpenCL device on a processor, a sub-device with so many of its cores.
    """

    backend: str = "numpy"
    device: str | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        if self.cores is not None:
            _require("cores", self.cores, self.cores >= 1, "at least 1")
            if self.backend != "opencl":
                raise ConfigError(f"cores: found backend '{self.backend}', only opencl can do that")


@dataclass(frozen=True)
class Way:
    """One direction of a link: a transfer takes latency_s + bytes ÷ bytes_per_s."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        _require("latency_s", self.latency_s, self.latency_s >= 0, "at least 0")
        _require("bytes_per_s", self.bytes_per_s, self.bytes_per_s > 0, "above 0")

    def seconds(self, nbytes: int) -> float:
        """How long ``nbytes`` take; nothing takes no time."""
        return self.latency_s + nbytes / self.bytes_per_s if nbytes else 0.0


@dataclass(frozen=True)
class Link:
    """Between host and device; up and down apart."""

    upload: Way
    download: Way


@dataclass(frozen=True)
class Heat:
    """After ``after_busy_s`` of work the device is hot: compute takes ``factor`` times as long.

    It is cool again after ``cools_idle_s`` idle seconds (which may come in pieces, in proportion),
    or ``cools_s`` after it became hot, whatever it does: exactly one of the two is given.
    """

    after_busy_s: float
    factor: float
    cools_idle_s: float | None = None
    cools_s: float | None = None

    def __post_init__(self) -> None:
        _require("after_busy_s", self.after_busy_s, self.after_busy_s > 0, "above 0")
        _require("factor", self.factor, self.factor >= 1, "at least 1")
        for name in ("cools_idle_s", "cools_s"):
            value = getattr(self, name)
            if value is not None:
                _require(name, value, value > 0, "above 0")
        if (self.cools_idle_s is None) == (self.cools_s is None):
            raise ConfigError("needs either cools_idle_s or cools_s")


@dataclass(frozen=True)
class Emulation:
    """An emulated device. ``compute_factor``: how many times as long as on the inner device.

    ``memory_nbytes``: by default that of the inner device. ``stall_after``: so many commands are
    carried out, the next one never ends.
    """

    name: str
    link: Link
    inner: Inner = field(default_factory=Inner)
    compute_factor: float = 1.0
    memory_nbytes: int | None = None
    heat: Heat | None = None
    stall_after: int | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("name: found nothing, needs text")
        _require("compute_factor", self.compute_factor, self.compute_factor >= 1, "at least 1")
        if self.memory_nbytes is not None:
            _require("memory_nbytes", self.memory_nbytes, self.memory_nbytes > 0, "above 0")
        if self.stall_after is not None:
            _require("stall_after", self.stall_after, self.stall_after >= 0, "at least 0")

    @property
    def digest(self) -> str:
        """Differs where anything that can be measured may: what was kept of a device is its own."""
        return hashlib.blake2b(repr(self).encode(), digest_size=4).hexdigest()


def load(path: Path) -> Emulation:
    """The emulated device of a file; ConfigError naming file and key."""
    return parse(Emulation, read_yaml(path), str(path))


def _require(name: str, value: float, right: bool, allowed: str) -> None:
    if not right:
        raise ConfigError(f"{name}: found {value}, must be {allowed}")
