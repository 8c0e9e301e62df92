"""Emulated devices whose time the tests make: a clock that stands still, work of a given length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from client import backends
from client.backends.base import Program
from client.backends.emulated.device import EmulatedDevice, describe
from client.backends.emulated.spec import Emulation, Link, Way
from client.backends.recipe import Hyper
from client.model import initialise
from tests import fakes

WORK_S = 0.01
"""What the tests' meter says of any command."""

LINK = Link(upload=Way(1e-3, 1e6), download=Way(2e-3, 0.5e6))
HYPER = Hyper(lr=0.1, momentum=0.9)
BATCH = 8


class Clock:
    """Stands still but while somebody waits."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def wait_until(self, moment_s: float) -> None:
        self.time_s = max(self.time_s, moment_s)


def meter(work: Callable[[], Any]) -> tuple[Any, float]:
    """Everything takes WORK_S on the inner device."""
    return work(), WORK_S


@contextmanager
def emulated(clock: Clock | None = None, **over: Any) -> Iterator[EmulatedDevice]:
    """numpy on a clock of its own; ``over``: keys of the emulation."""
    emulation = replace(Emulation("toy", LINK, compute_factor=3.0), **over)
    numpy = backends.get("numpy")
    inner = numpy.open_part(numpy.devices()[0], memory_nbytes=emulation.memory_nbytes)
    info = describe(emulation, inner.info)
    device = EmulatedDevice(info, emulation, inner, clock or Clock(), meter)
    yield device
    device.close()


def ready(device: EmulatedDevice, n: int = 3 * BATCH) -> Program:
    """A program with values and an epoch's order; nothing is in flight."""
    model = fakes.model()
    program = device.compile(model.whole, BATCH)
    program.upload(initialise(model, seed=0))
    data = device.load(*fakes.examples(n))
    program.begin_epoch(data, np.arange(n, dtype=np.int32), BATCH, 0)
    device.finish()
    return program


class Lap:
    """How far a clock went since the last asking."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._last_s = clock, clock.time_s

    def __call__(self) -> float:
        passed_s = self._clock.time_s - self._last_s
        self._last_s = self._clock.time_s
        return passed_s
