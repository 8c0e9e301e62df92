"""Emulated devices with real clocks: one that becomes hot is left, and taken again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client.backends.recipe import Hyper
from client.config import Experiment
from client.fields import parse
from client.model import initialise
from client.timing import RoundClock
from client.trainer import Task
from client.worker.session import Session

DEVICE = """
name: {name}
compute_factor: {factor}
link:
  upload: {{latency_s: 20e-6, bytes_per_s: 4e9}}
  download: {{latency_s: 20e-6, bytes_per_s: 4e9}}
"""
HEAT = "heat: {after_busy_s: 2.0, factor: 3, cools_s: 3.0}\n"
ROUNDS = 2000
MOST_ROUNDS = 120
STEPS = 40
BATCH = 32


def session(folder: Path) -> Session:
    g = np.random.default_rng(0)
    n = STEPS * BATCH
    x = g.integers(0, 255, (n, 1, 16, 16), dtype=np.uint8)
    np.savez(folder / "data.npz", x=x, y=(np.arange(n) % 10).astype(np.int32))
    layers = ["flatten", {"type": "linear", "out_features": 64}, "relu"]
    value = {
        "name": "heat",
        "model": {
            "name": "small",
            "input": {"shape": [1, 16, 16]},
            "layers": [*layers, {"type": "linear", "out_features": 10}],
        },
        "data": {"source": "data.npz", "partition": {"kind": "iid", "nodes": 1}},
        "train": {"lr": 0.01, "batch": BATCH, "local_epochs": 1},
        "federation": {"rounds": ROUNDS},
        "devices": {"backend": "emulated", "placement": "single"},
        "seed": 1,
    }
    return Session(parse(Experiment, value, "heat.yaml"), folder)


@pytest.mark.slow
def test_a_hot_device_is_left_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The devices' clocks are the host's, whose other work adds: nothing is said of when, and
    nothing at all where the host could not keep up."""
    fast, steady = tmp_path / "fast.yaml", tmp_path / "steady.yaml"
    fast.write_text(DEVICE.format(name="fast", factor=60) + HEAT)
    steady.write_text(DEVICE.format(name="steady", factor=120))
    monkeypatch.setenv("POCKETFED_EMULATE", f"{fast}:{steady}")
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    s = session(tmp_path)
    params, trained_on = initialise(s.model, seed=1), []
    for number in range(1, MOST_ROUNDS + 1):
        task = Task(number, 1, "node-0", 1, BATCH, Hyper(lr=0.01))
        outcome, record = s.train(task, None, params, None, RoundClock())
        params = outcome.params
        if record.device["name"] not in trained_on[-1:]:
            trained_on.append(record.device["name"])
        if "fast, steady, fast" in ", ".join(trained_on):
            break
    s.close()
    if "too slow or too busy" in caplog.text:
        pytest.skip("this machine is too busy for an emulation's times to hold")
    assert "fast, steady, fast" in ", ".join(trained_on)
    assert record.decision is not None
    numbers = record.decision.numbers
    assert numbers["planning_s"] < 0.05 * ROUNDS * STEPS * numbers["step_s"]
