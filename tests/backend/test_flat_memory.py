"""200 rounds of eight nodes in one process: neither host nor device memory grows."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from client import trainer
from client.backends import at_hand
from client.backends.recipe import Hyper
from client.model import initialise
from client.timing import RoundClock
from client.trainer import Task
from client.worker.session import Session
from tests import fakes
from tests.backend.opencl_devices import first_device

NODES, ROUNDS, WARM_UP = 8, 200, 20
ALLOWED_NBYTES = 1 << 20
"""Allocators keep a few pages; two kernels made in each node's round would be four times that."""


def own_nbytes() -> int:
    """Memory of this process alone: what it shares changes with other processes."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", at_hand())
def test_rounds_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Each step is waited for: how much is in flight, and so what a queue holds, is chance."""
    if backend == "opencl":
        first_device()
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer, "IN_FLIGHT_S", 0.0)
    partition = {"kind": "dirichlet", "nodes": NODES}
    experiment = fakes.experiment(
        tmp_path, n=803, data={"partition": partition}, devices={"backend": backend}
    )
    session = Session(experiment, tmp_path)
    params = initialise(session.model, seed=0)
    hyper = Hyper(lr=0.01, momentum=0.9)
    host, device = [], []
    for number in range(ROUNDS):
        planned = 0
        for node in range(NODES):
            task = Task(number, 3, f"node-{node}", 1, 8, hyper)
            outcome, record = session.train(task, None, params, None, RoundClock())
            planned += record.peak_nbytes
        params = outcome.params
        if number >= WARM_UP and number % 10 == 0:
            host.append(own_nbytes())
            device.append(planned)
    session.close()
    assert np.isfinite(params).all()
    quarter = len(host) // 4
    grown = np.median(host[-quarter:]) - np.median(host[:quarter])
    assert grown < ALLOWED_NBYTES, f"{grown / ROUNDS / NODES:,.0f} bytes for each node's round"
    assert len(set(device)) == 1
