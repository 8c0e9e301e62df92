"""The host's processor as a device."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from client.backends.base import ROOM_FOR_DATA, Backend, Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.exercises import Exercises
from client.backends.figures import COPY_SIZES, Peaks, Traffic
from client.backends.numpy.data import NumpyData
from client.backends.numpy.exercises import NumpyExercises
from client.backends.numpy.program import NumpyProgram
from client.backends.recipe import DEFAULT_RECIPE, Recipe
from client.errors import DeviceError
from client.model.graph import Segment
from client.model.losses import Labels

PEAK_SIZE = 1024
PEAK_REPEATS = 5

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


class NumpyDevice(Device):
    """Computes at once, in the caller's thread (matrix products in BLAS's threads).

    ``dtype``: float32, or float64 for gradient checks. Host and device are one, so that nothing is
    transferred: the traffic's bytes stay 0.
    """

    has_queue: ClassVar[bool] = False

    def __init__(self, info: DeviceInfo, dtype: DTypeLike = np.float32) -> None:
        self.info = info
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.traffic = Traffic()

    def load(self, x: NDArray[Any], y: Labels) -> DeviceData:
        return NumpyData(x, y)

    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        if capacity < 1:
            raise ValueError(f"capacity {capacity}, must be at least 1")
        try:
            return NumpyProgram(segment, capacity, recipe, self.dtype, self.traffic)
        except MemoryError as e:
            raise DeviceError(
                f"{self.info.name}: model '{segment.model.name}' with batches of {capacity}: "
                f"{e or 'not enough memory'}; choose a smaller train.batch"
            ) from None

    def measure_peaks(self) -> Peaks:
        """A large matrix product in BLAS, and copies by one thread, as numpy copies."""
        a, b = (np.ones((PEAK_SIZE, PEAK_SIZE), self.dtype) for _ in range(2))
        c = np.empty_like(a)
        product_s = _shortest_s(partial(np.matmul, a, b, out=c))
        copies = []
        for nbytes in COPY_SIZES:
            x = np.ones(nbytes, np.uint8)
            copies.append((2 * nbytes, 2 * nbytes / _shortest_s(partial(np.copyto, x.copy(), x))))
        how = f"matmul of {PEAK_SIZE}x{PEAK_SIZE}"
        return Peaks(2 * PEAK_SIZE**3 / product_s, tuple(copies), how)

    def exercises(self) -> Exercises:
        return NumpyExercises(self.dtype)

    def largest_batch(self, segment: Segment, at_most: int, recipe: Recipe) -> int:
        """From programs for one and two examples: memory grows evenly with the batch."""
        one, two = (self.compile(segment, n, recipe).nbytes for n in (1, 2))
        room = int((1 - ROOM_FOR_DATA) * self.info.global_mem_nbytes)
        if not self.info.global_mem_nbytes or two == one:
            return at_most
        return max(0, min(at_most, 1 + (room - one) // (two - one)))

    def throttle(self, limit_s: float) -> None:
        """Nothing is ever in flight."""

    def flush(self) -> None:
        """Nothing is ever in flight."""

    def finish(self) -> None:
        """Nothing is ever in flight."""

    def close(self) -> None:
        """Nothing is held."""


class NumpyBackend(Backend):
    """One device: this machine's processor."""

    name: ClassVar[str] = "numpy"

    def devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                backend=self.name,
                name=_cpu_name(),
                kind="cpu",
                vendor=platform.machine(),
                platform=f"Python {platform.python_version()}",
                driver=f"numpy {np.__version__}, {_blas()}",
                compute_units=_threads(),
                global_mem_nbytes=_memory_nbytes(),
            )
        ]

    def open(self, info: DeviceInfo) -> Device:
        return NumpyDevice(info)

    def open_part(
        self, info: DeviceInfo, cores: int | None = None, memory_nbytes: int | None = None
    ) -> Device:
        if cores is not None:
            names = ", ".join(THREAD_VARIABLES)
            raise DeviceError(
                f"{info.name}: numpy's threads cannot be limited for one device: set one of {names}"
            )
        return NumpyDevice(replace(info, global_mem_nbytes=memory_nbytes or info.global_mem_nbytes))


def _shortest_s(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(PEAK_REPEATS):
        began = perf_counter()
        work()
        taken.append(perf_counter() - began)
    return min(taken)


def _cpu_name() -> str:
    """The processor's name; its architecture where Linux does not say (as on many phones)."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    for key in ("model name", "Hardware", "Processor"):
        if fields.get(key):
            return fields[key]
    return f"{platform.machine()} processor"


def _threads() -> int:
    """Threads of matrix products: a core each, or fewer where the environment says so.

    The number can change the last bits of a result, so that it belongs to a recorded placement.
    OpenBLAS takes the first of the variables that is set, and never more threads than cores.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    given = (os.environ.get(name, "") for name in THREAD_VARIABLES)
    wanted = next((int(n) for n in given if n.isdecimal() and int(n) > 0), cores)
    return min(wanted, cores)


def _memory_nbytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _blas() -> str:
    """Name and version of the linear algebra library that numpy was built with."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()
