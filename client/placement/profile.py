"""What was measured of a machine's processors, and its YAML. Pure: measures nothing itself.

A profile is written by ``client.placement.probe`` and is all that the cost model knows of a
processor before it has seen it train: how fast products of matrices and copies go by their size,
what a launch costs, and what passes between host and device in each direction. A simulation of a
device takes the same file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from client.backends.exercises import LinkKind
from client.errors import ConfigError
from client.fields import describe, parse, parse_yaml, read_yaml

VERSION = 1


@dataclass(frozen=True)
class Gemm:
    """Speed of a product (m, k) x (k, n): 2 m n k operations by their wall time."""

    m: int
    n: int
    k: int
    flops_per_s: float

    def __post_init__(self) -> None:
        _positive(self, "m", "n", "k", "flops_per_s")

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Copy:
    """Speed of a copy within the processor's memory: ``nbytes`` are those read and written."""

    nbytes: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        _positive(self, "nbytes", "bytes_per_s")


@dataclass(frozen=True)
class Link:
    """The way between host and device: what every transfer costs, and bytes a second beyond it."""

    upload_latency_s: float
    upload_bytes_per_s: float
    download_latency_s: float
    download_bytes_per_s: float

    def __post_init__(self) -> None:
        _positive(self, "upload_bytes_per_s", "download_bytes_per_s")
        _not_negative(self, "upload_latency_s", "download_latency_s")

    def upload_s(self, nbytes: int) -> float:
        """Seconds from host to device."""
        return self.upload_latency_s + nbytes / self.upload_bytes_per_s

    def download_s(self, nbytes: int) -> float:
        """Seconds from device to host."""
        return self.download_latency_s + nbytes / self.download_bytes_per_s


@dataclass(frozen=True)
class ProcessorProfile:
    """One processor. ``key``, ``driver`` and ``threads`` say of which one, and when it is stale.

    ``gemms`` and ``copies`` from small to large; either is empty where it was not measured (the
    quick probe measures launches and links alone). ``launch_s``: of a command that does next to
    nothing, when many are enqueued. ``link_used``: the kind that our transfers go through.
    ``power_w``: drawn under load, where somebody knows it; never measured.
    """

    key: str  # DeviceInfo.key
    backend: str
    name: str
    kind: str  # "cpu", "gpu" or "accelerator"
    driver: str
    threads: int  # of a CPU, else compute units
    memory_nbytes: int  # 0: no limit known
    shared_memory: bool  # with the host
    gemms: tuple[Gemm, ...]
    copies: tuple[Copy, ...]
    launch_s: float
    links: dict[LinkKind, Link]
    link_used: LinkKind
    power_w: float | None = None

    def __post_init__(self) -> None:
        _not_negative(self, "memory_nbytes", "launch_s")
        _positive(self, "threads", *(["power_w"] if self.power_w is not None else []))
        if self.link_used not in self.links:
            raise ConfigError(
                f"link_used: found '{self.link_used}', which is not among the links "
                f"({', '.join(self.links) or 'none'})"
            )

    @property
    def link(self) -> Link:
        """The link that our transfers go through."""
        return self.links[self.link_used]

    @property
    def complete(self) -> bool:
        """Whether arithmetic and copies were measured, too."""
        return bool(self.gemms and self.copies)

    def copy_of(self, nbytes: int) -> Copy:
        """The smallest copy that moves at least so many bytes, else the largest."""
        if not self.copies:
            raise ValueError(f"{self.name}: no copies were measured")
        return next((c for c in self.copies if c.nbytes >= nbytes), self.copies[-1])


@dataclass(frozen=True)
class DeviceProfile:
    """The processors of a machine, as measured on one day by one version of pocketfed.

    ``cores``: of the host, for its processors to share; 0 where that is not known.
    """

    version: int
    host: str
    date: str  # ISO 8601
    pocketfed: str
    processors: tuple[ProcessorProfile, ...]
    cores: int = 0

    def __post_init__(self) -> None:
        _not_negative(self, "cores")
        keys = [p.key for p in self.processors]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"processors: the key '{key}' stands twice")

    def find(self, key: str) -> ProcessorProfile | None:
        """The processor of a key; None if it is not in this profile."""
        return next((p for p in self.processors if p.key == key), None)

    def to_yaml(self) -> str:
        """As ``load`` reads it."""
        value = asdict(self)
        for processor in value["processors"]:
            processor["gemms"] = list(processor["gemms"])
            processor["copies"] = list(processor["copies"])
            if processor["power_w"] is None:
                del processor["power_w"]
        value["processors"] = list(value["processors"])
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def load(path: Path) -> DeviceProfile:
    """A profile's file; ConfigError with file and key path where it is none."""
    return _profile(read_yaml(path), str(path))


def from_yaml(text: str, where: str) -> DeviceProfile:
    """A profile's text; ConfigError naming ``where`` if it is none."""
    value = parse_yaml(text, where)
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: needs a mapping (key: value)")
    return _profile(value, where)


def _profile(value: Mapping[str, object], where: str) -> DeviceProfile:
    found = value.get("version")
    if found != VERSION or isinstance(found, bool):
        raise ConfigError(
            f"{where}: version: found {describe(found)}, this pocketfed reads version {VERSION}: "
            f"measure again with: pocketfed probe -o {where}"
        )
    return parse(DeviceProfile, dict(value), where)


def _positive(of: object, *names: str) -> None:
    for name in names:
        if not (getattr(of, name) > 0 and math.isfinite(getattr(of, name))):
            raise ConfigError(f"{name}: found {getattr(of, name)}, needs a number above 0")


def _not_negative(of: object, *names: str) -> None:
    for name in names:
        if not (getattr(of, name) >= 0 and math.isfinite(getattr(of, name))):
            raise ConfigError(f"{name}: found {getattr(of, name)}, needs a number from 0")
