"""A backend that computes as numpy does, is faster, and fails as the environment says.

BRITTLE        raise, die or hang: what it does at a training step; discovery: die when looked for
BRITTLE_ONCE   a file: it fails once, leaving this behind; otherwise at every round
BRITTLE_CALLS  a file: a line for each call that a warm round does without
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from client import trainer
from client.backends.base import Backend, Device, DeviceData, Program
from client.backends.device_info import DeviceInfo
from client.backends.numpy.device import NumpyDevice
from client.backends.numpy.program import NumpyProgram
from client.backends.recipe import DEFAULT_RECIPE, Hyper, Recipe
from client.errors import DeviceError
from client.model.graph import Segment

STEP_S, NUMPY_STEP_S = 0.001, 0.01


class Clock:
    """Stands in for the module ``time`` where training is timed: steps alone take time, so that
    no load of this machine decides which backend is the faster one."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


CLOCK = Clock()
trainer.time = CLOCK  # type: ignore[assignment]


def fail() -> None:
    """Do what was asked for."""
    once = os.environ.get("BRITTLE_ONCE")
    if once:
        if Path(once).exists():
            return
        Path(once).touch()
    how = os.environ.get("BRITTLE")
    if how == "raise":
        raise DeviceError("brittle device: lost")
    if how in ("die", "discovery"):
        os.kill(os.getpid(), signal.SIGKILL)  # LLVM in PoCL catches SIGSEGV
    if how == "hang":
        time.sleep(3600)


def count(call: str) -> None:
    """Leave a trace of a call."""
    path = os.environ.get("BRITTLE_CALLS")
    if path:
        with Path(path).open("a") as f:
            f.write(f"{call}\n")


class BrittleProgram(NumpyProgram):
    def step(self, start: int, count: int, hyper: Hyper) -> None:
        fail()
        CLOCK.now_s += STEP_S
        Program.step(self, start, count, hyper)


def slow_step(program: NumpyProgram, start: int, count: int, hyper: Hyper) -> None:
    """A step on numpy itself, which must not be taken for the faster one."""
    CLOCK.now_s += NUMPY_STEP_S
    Program.step(program, start, count, hyper)


NumpyProgram.step = slow_step  # type: ignore[method-assign]


class BrittleDevice(NumpyDevice):
    def load(self, x: NDArray[Any], y: NDArray[np.int32]) -> DeviceData:
        count("load")
        return super().load(x, y)

    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        count("compile")
        return BrittleProgram(segment, capacity, recipe, self.dtype, self.traffic)


class BrittleBackend(Backend):
    name: ClassVar[str] = "brittle"

    def devices(self) -> list[DeviceInfo]:
        count("devices")
        if os.environ.get("BRITTLE") == "discovery":
            fail()
        return [DeviceInfo("brittle", "brittle device", "gpu")]

    def open(self, info: DeviceInfo) -> Device:
        count("open")
        return BrittleDevice(info)


BACKEND = BrittleBackend()
