"""Measures what processors and links do: a ``DeviceProfile``, from a device's own exercises.

One timing for every device and primitive, on the host's clock: a warm-up, repetitions grown until
they last a while, the shortest of some groups (what else the machine does can only add). Latency
and bandwidth are measured apart, each way.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import kernels
from client import __version__
from client.backends.base import Device
from client.backends.device_info import DeviceInfo
from client.backends.exercises import Exercise, Exercises, LinkKind
from client.cache import cache_dir, write_atomically
from client.errors import ConfigError
from client.placement import profile
from client.placement.profile import Copy, DeviceProfile, Gemm, Link, ProcessorProfile

GEMMS = ((32, 64, 64), (256, 256, 256), (1024, 1024, 1024))
"""(m, n, k) of products: as of a small network's layer, of a middling one's, and the peak."""

COPIES = (2**16, 2**19, 2**22, 2**26)
"""Bytes read and as many written: within a core's cache, between, and beyond all caches."""

SMALL_NBYTES = 64
LARGE_NBYTES = 2**22
"""Transfers whose times give a link's latency and its bandwidth: a few values, a large boundary."""

GROUP_S = 0.01
"""A group of repetitions lasts about so long: clock resolution and interruptions are small in it.
Long enough for a host's clock, short enough that a machine is measured in seconds."""

GROUPS = 3
MOST_S = 0.2
"""From then on no further group of an exercise is begun, however slow the device is."""

MOST_REPEATS = 2**16

REST_S = 0.15
"""After products on a CPU: OpenBLAS's idle threads go on spinning for some 0.13 s and would take
the cores from whatever is measured next."""

QUICK_S = 0.3
"""Budget of a quick probe."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timer:
    """How long each exercise is repeated, and by which clock."""

    group_s: float = GROUP_S
    clock: Callable[[], float] = perf_counter

    def seconds(self, exercise: Exercise) -> float:
        """Of one repetition; the exercise is released."""
        try:
            return self._seconds(exercise)
        finally:
            exercise.release()

    def _seconds(self, exercise: Exercise) -> float:
        began = self.clock()
        exercise.run(1)  # warms up: compilers that wait for the first launch, pages, caches
        repeats = 1
        taken = self._timed(exercise, repeats)
        while taken < self.group_s and repeats < MOST_REPEATS:
            factor = min(max(self.group_s / max(taken, 1e-9), 2), 16)
            repeats = min(int(repeats * factor) + 1, MOST_REPEATS)
            taken = self._timed(exercise, repeats)
        shortest = taken
        for _ in range(GROUPS - 1):
            if self.clock() - began > MOST_S:
                break
            shortest = min(shortest, self._timed(exercise, repeats))
        return max(shortest / repeats, 1e-9)

    def _timed(self, exercise: Exercise, repeats: int) -> float:
        began = self.clock()
        exercise.run(repeats)
        return self.clock() - began


def measure_fully(device: Device) -> ProcessorProfile:
    """All that a profile holds: a second or two, nothing else running; DeviceError if it fails."""
    device.finish()
    exercises, timer = device.exercises(), Timer()
    launch_s = timer.seconds(exercises.launch())
    links = {kind: _link(exercises, kind, timer) for kind in exercises.link_kinds}
    copies = []
    for nbytes in COPIES:
        if nbytes <= exercises.most_nbytes:
            both = 2 * nbytes
            copies.append(Copy(both, both / timer.seconds(exercises.copy(nbytes))))
    gemms = []
    for m, n, k in GEMMS:
        if 4 * max(m * n, n * k, m * k) <= exercises.most_nbytes:
            gemms.append(Gemm(m, n, k, 2 * m * n * k / timer.seconds(exercises.gemm(m, n, k))))
    if device.info.kind == "cpu":
        time.sleep(REST_S)
    return _profile(device, launch_s, links, tuple(gemms), tuple(copies))


def measure_quickly(device: Device, budget_s: float = QUICK_S) -> ProcessorProfile:
    """Launches and the link used alone, for about ``budget_s``; what is slow may take longer."""
    device.finish()
    exercises = device.exercises()
    timer = Timer(group_s=budget_s / (5 * (GROUPS + 2)))  # five exercises, groups and growth
    launch_s = timer.seconds(exercises.launch())
    links = {exercises.link_used: _link(exercises, exercises.link_used, timer)}
    return _profile(device, launch_s, links, (), ())


def _link(exercises: Exercises, kind: LinkKind, timer: Timer) -> Link:
    large = min(LARGE_NBYTES, exercises.most_nbytes)
    up_s, down_s = (
        (timer.seconds(of(SMALL_NBYTES, kind)), timer.seconds(of(large, kind)))
        for of in (exercises.upload, exercises.download)
    )
    return Link(up_s[0], _beyond(up_s, large), down_s[0], _beyond(down_s, large))


def _beyond(seconds: tuple[float, float], nbytes: int) -> float:
    """Bytes a second beyond the latency; of all the time where the small one took no less."""
    latency_s, large_s = seconds
    return nbytes / (large_s - latency_s if large_s > latency_s else large_s)


def _profile(
    device: Device,
    launch_s: float,
    links: dict[LinkKind, Link],
    gemms: tuple[Gemm, ...],
    copies: tuple[Copy, ...],
) -> ProcessorProfile:
    info, exercises = device.info, device.exercises()
    return ProcessorProfile(
        key=info.key,
        backend=info.backend,
        name=info.name,
        kind=info.kind,
        driver=info.driver,
        threads=info.compute_units,
        memory_nbytes=info.global_mem_nbytes,
        shared_memory=info.unified_memory,
        gemms=gemms,
        copies=copies,
        launch_s=launch_s,
        links=links,
        link_used=exercises.link_used,
    )


def dated(processors: Sequence[ProcessorProfile]) -> DeviceProfile:
    """A profile of this machine, as of now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    cores = os.cpu_count() or 0
    version = profile.VERSION
    return DeviceProfile(version, platform.node(), now, __version__, tuple(processors), cores)


# -- what is kept between processes ------------------------------------------------------------
def profile_of(device: Device, budget_s: float = QUICK_S) -> ProcessorProfile:
    """What is kept of a device, else what a quick probe finds now."""
    return saved(device.info) or measure_quickly(device, budget_s)


def keep(measured: DeviceProfile) -> None:
    """Keep each processor's profile in the cache folder; a warning where that cannot be."""
    for processor in measured.processors:
        path = _path(processor.key, processor.threads)
        try:
            write_atomically(path, dated((processor,)).to_yaml().encode())
        except OSError as e:
            log.warning("the profile of %s is not kept: %s: %s", processor.name, path, e.strerror)


def saved(info: DeviceInfo) -> ProcessorProfile | None:
    """What was kept of a device by this version, with its driver and threads; None if nothing."""
    path = _path(info.key, info.compute_units)
    try:
        if not path.is_file():
            return None
        return profile.load(path).find(info.key)
    except (ConfigError, OSError) as e:
        log.warning("the kept profile of %s is left aside: %s", info.name, e)
        return None


def _path(key: str, threads: int) -> Path:
    what = repr((profile.VERSION, __version__, kernels.digest(), key, threads))
    name = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
    return cache_dir() / "profiles" / f"{name}.yaml"
