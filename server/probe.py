"""`pocketfed probe`: what the processors and links of this machine do, measured and kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client import backends
from client.backends.base import Device
from client.cache import write_atomically
from client.errors import DeviceError
from client.placement import probe
from client.placement.profile import DeviceProfile, ProcessorProfile
from server import console
from server.files import reason

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)


def measure(say: Callable[[str], None]) -> DeviceProfile:
    """Every device that works here; DeviceError with the reasons where none does."""
    measured: list[ProcessorProfile] = []
    failed: list[str] = []
    for device in _devices(failed):
        say(f"{device.info.backend} {device.info.name} …")
        try:
            measured.append(probe.measure_fully(device))
        except DeviceError as e:
            failed.append(f"{device.info.backend} {e}")
        finally:
            device.close()
    if not measured:
        raise DeviceError(f"no device here can be measured: {'; '.join(failed)}")
    for line in failed:
        log.warning("left out: %s", line)
    return probe.dated(measured)


def _devices(failed: list[str]) -> Iterator[Device]:
    for name in backends.at_hand():
        try:
            infos = backends.get(name).devices()
        except DeviceError as e:
            failed.append(f"{name}: {e}")
            continue
        for info in infos:
            try:
                device = backends.get(name).open(info)
            except DeviceError as e:
                failed.append(f"{name} {e}")
            else:
                yield device


def write(profile: DeviceProfile, path: Path) -> None:
    """Write a profile's file; DeviceError if it cannot be written."""
    try:
        write_atomically(path, profile.to_yaml().encode())
    except OSError as e:
        raise DeviceError(f"{path}: cannot be written: {reason(e)}") from None


def as_json(profile: DeviceProfile) -> dict[str, Any]:
    """The JSON object of `pocketfed probe`: the profile as its file has it."""
    return asdict(profile)


def render(profile: DeviceProfile) -> list[Table]:
    """A table of the processors, and one of their links."""
    shapes = sorted({(g.flops, g.m, g.n, g.k) for p in profile.processors for g in p.gemms})
    columns = ["backend", "processor", "threads"]
    columns += [f"{m}x{n}x{k} GFLOPS" for _, m, n, k in shapes]
    columns += ["copy GB/s cached", "beyond", "launch us", "memory", "shared"]
    processors = console.table(
        "pocketfed probe",
        columns,
        [_processor(p, [s[1:] for s in shapes]) for p in profile.processors],
        fold=("processor",),
        keys=2,
    )
    links = console.table(
        "links to the host",
        ["backend", "processor", "memory", "up us", "up GB/s", "down us", "down GB/s", "used"],
        [row for p in profile.processors for row in _links(p)],
        fold=("processor",),
        keys=3,
    )
    return [processors, links]


def _processor(p: ProcessorProfile, shapes: list[tuple[int, int, int]]) -> list[str]:
    speeds = {(g.m, g.n, g.k): f"{g.flops_per_s * 1e-9:.1f}" for g in p.gemms}
    return [
        p.backend,
        console.short(p.name),
        str(p.threads),
        *(speeds.get(shape, "") for shape in shapes),
        f"{max(c.bytes_per_s for c in p.copies) * 1e-9:.1f}",
        f"{p.copies[-1].bytes_per_s * 1e-9:.1f}",
        f"{p.launch_s * 1e6:.1f}",
        console.nbytes(p.memory_nbytes) if p.memory_nbytes else "",
        "yes" if p.shared_memory else "no",
    ]


def _links(p: ProcessorProfile) -> Iterator[list[str]]:
    for kind, link in p.links.items():
        yield [
            p.backend,
            console.short(p.name),
            kind,
            f"{link.upload_latency_s * 1e6:.1f}",
            f"{link.upload_bytes_per_s * 1e-9:.2f}",
            f"{link.download_latency_s * 1e6:.1f}",
            f"{link.download_bytes_per_s * 1e-9:.2f}",
            "yes" if kind == p.link_used else "",
        ]
