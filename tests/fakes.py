"""Backends that misbehave on purpose, and a small federation for them to train.

A fake device computes as numpy does (it is numpy), but may claim other times, fail at a step, or
spoil its gradients. Times are not slept: they advance a clock that the trainer is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client import backends, config, trainer
from client.backends.base import Backend, Device, DeviceData, Program
from client.backends.device_info import DeviceInfo, numbered
from client.backends.numpy.device import NumpyDevice
from client.backends.numpy.program import NumpyProgram
from client.backends.recipe import DEFAULT_RECIPE, Hyper, Recipe
from client.config import Experiment
from client.errors import DeviceError
from client.fields import overlay, parse
from client.model import Model, build_model
from client.model.graph import Float32Array, Segment
from client.model.losses import Labels
from client.record import NodeRecord, PlacedLayout, PlacedPart, Placement

MODEL = {
    "name": "small",
    "input": {"shape": [1, 4, 4], "mean": [0.4], "std": [0.3]},
    "layers": [
        "flatten",
        {"type": "linear", "name": "fc1", "out_features": 8},
        "relu",
        {"type": "linear", "name": "fc2", "out_features": 3},
    ],
}


def model() -> Model:
    """A network that trains in no time: 16-8-3."""
    return build_model(MODEL, "small")


def examples(n: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Images of three classes that can be told apart: one bright row each, in noise."""
    g = np.random.default_rng(seed)
    y = (np.arange(n) % 3).astype(np.int32)
    x = g.integers(0, 120, (n, 1, 4, 4), np.uint8)
    x[np.arange(n), 0, y] += 100
    return x, y


def write_examples(path: Path, n: int, seed: int = 0) -> Path:
    """The same in an .npz file."""
    x, y = examples(n, seed)
    np.savez(path, x=x, y=y)
    return path


def experiment(folder: Path, n: int = 60, **over: Any) -> Experiment:
    """Two nodes that share ``n`` examples in ``folder``; ``over`` is laid over the mapping."""
    value = {
        "name": "small",
        "model": MODEL,
        "data": {
            "source": str(write_examples(folder / "data.npz", n)),
            "partition": {"kind": "iid", "nodes": 2},
        },
        "train": {"lr": 0.1, "momentum": 0.9, "batch": 8, "local_epochs": 2},
        "federation": {"rounds": 2},
        "devices": {"placement": "single"},
        "seed": 3,
    }
    return parse(Experiment, overlay(value, over), "small.yaml")


def placement(
    backend: str, device: str, threads: int = 1, variants: tuple[tuple[str, str], ...] = ()
) -> Placement:
    """The small model as a whole on one device."""
    part = PlacedPart(backend, device, threads, 0, model().whole.stop, variants=variants)
    return Placement((PlacedLayout((part,)),))


def backend_of(record: NodeRecord) -> str:
    """Where a node trained, which needed one device."""
    assert record.placement is not None
    [part] = record.placement.kept.parts
    return part.backend


def logits(params: Float32Array, x: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The small model's scores, written out: float64 (n, 3)."""
    p = {name: v.astype(np.float64) for name, v in model().views(params).items()}
    h = (x.reshape(len(x), 16) / 255 - 0.4) / 0.3
    h = np.maximum(h @ p["fc1.weight"].T + p["fc1.bias"], 0)
    return h @ p["fc2.weight"].T + p["fc2.bias"]


def numpy_device() -> NumpyDevice:
    """The reference."""
    return NumpyDevice(backends.get("numpy").devices()[0])


class Clock:
    """Stands in for the module ``time`` where durations are measured."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


Spoil = Callable[[Model, Float32Array, int], None]
"""(model, flat gradients to change in place, size of the batch)."""


@dataclass
class Fake(Backend):
    """A backend with one device, or equal ``twins``. ``calls`` counts what was asked of it."""

    name: str  # type: ignore[misc]
    step_s: float = 1.0
    upload_s: float = 0.0
    download_s: float = 0.0
    fail_at_step: int | None = None  # counted from 1 over the device's life, parity left out
    fail_to_compile: bool = False
    unavailable: str = ""  # why the backend as a whole does not work
    spoil: Spoil | None = None
    driver: str = "1.0"
    empty: bool = False
    twins: int = 1
    clock: Clock = field(default_factory=Clock)
    calls: Counter[str] = field(default_factory=Counter)

    def devices(self) -> list[DeviceInfo]:
        self.calls["devices"] += 1
        if self.unavailable:
            raise DeviceError(self.unavailable)
        if self.empty:
            return []
        info = DeviceInfo(self.name, f"{self.name} device", "gpu", driver=self.driver)
        return numbered([info] * self.twins)

    def open(self, info: DeviceInfo) -> Device:
        self.calls["open"] += 1
        return FakeDevice(info, self)


class FakeDevice(NumpyDevice):
    def __init__(self, info: DeviceInfo, fake: Fake) -> None:
        super().__init__(info)
        self._fake = fake

    def load(self, x: NDArray[Any], y: Labels) -> DeviceData:
        self._fake.calls["load"] += 1
        self.traffic.upload_nbytes += x.nbytes + y.nbytes
        return super().load(x, y)

    def compile(self, segment: Segment, capacity: int, recipe: Recipe = DEFAULT_RECIPE) -> Program:
        self._fake.calls["compile"] += 1
        if self._fake.fail_to_compile:
            raise DeviceError(f"{self.info.name}: gemm.cl does not build: update the driver")
        return FakeProgram(segment, capacity, recipe, self, self._fake)


class FakeProgram(NumpyProgram):
    def __init__(
        self, segment: Segment, capacity: int, recipe: Recipe, device: FakeDevice, fake: Fake
    ) -> None:
        super().__init__(segment, capacity, recipe, device.dtype, device.traffic)
        self._fake = fake

    def upload(self, params: Float32Array) -> None:
        self._fake.calls["upload"] += 1
        self._fake.clock.now_s += self._fake.upload_s
        self._traffic.upload_nbytes += params.nbytes
        super().upload(params)

    def download(self) -> Float32Array:
        self._fake.calls["download"] += 1
        self._fake.clock.now_s += self._fake.download_s
        return super().download()

    def step(self, start: int, count: int, hyper: Hyper) -> None:
        self._fake.calls["step"] += 1
        self._fake.clock.now_s += self._fake.step_s
        if self._fake.calls["step"] == self._fake.fail_at_step:
            raise DeviceError(f"{self._fake.name} device: lost: restart it")
        super().step(start, count, hyper)

    def backward(self, count: int) -> None:
        super().backward(count)
        if self._fake.spoil is not None:
            self._fake.spoil(self.segment.model, self._grads, count)

    def release(self) -> None:
        self._fake.calls["release"] += 1
        super().release()


def register(monkeypatch: pytest.MonkeyPatch, *fakes: Fake, numpy: bool = True) -> Clock:
    """Make the fakes (and numpy, which is always there to compare with) all backends there are.

    They share one clock, which training steps are timed by; returns it.
    """
    real = backends.get("numpy")
    known: dict[str, Backend] = {fake.name: fake for fake in fakes}
    found = tuple(sorted([*known, "numpy"] if numpy else known))
    monkeypatch.setattr(backends, "get", lambda name: known.get(name, real))
    for module in (backends, config):
        monkeypatch.setattr(module, "names", lambda: found)
    clock = Clock()
    for fake in fakes:
        fake.clock = clock
    monkeypatch.setattr(trainer, "time", clock)
    return clock
