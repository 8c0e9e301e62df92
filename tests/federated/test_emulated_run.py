"""Federations on emulated devices: one that stalls is given up for the processor beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client.worker import supervisor
from server import simulate
from server.store import Store
from tests import fakes

STALLING = """
name: stalling
stall_after: 12
link:
  upload: {latency_s: 1e-6, bytes_per_s: 1e10}
  download: {latency_s: 1e-6, bytes_per_s: 1e10}
"""

ONLY = """
import client.backends
client.backends.names = lambda: ("emulated", "numpy")
"""
"""Python imports it where a worker starts: what else the machine has is not asked."""


@pytest.mark.slow
def test_a_stalled_device_is_cut_off_and_the_round_ends_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stalling.yaml").write_text(STALLING)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONLY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POCKETFED_EMULATE", str(tmp_path / "stalling.yaml"))
    monkeypatch.setattr(supervisor, "FIRST_S", 15.0)
    experiment = fakes.experiment(tmp_path, federation={"rounds": 1})
    result = simulate.start(experiment, tmp_path, tmp_path / "run", isolate=True)
    assert result.rounds == 1
    with Store.read(result.run / "run.db") as store:
        records, events = [row.record for row in store.node_rounds()], store.events()
    assert len(records) == 2
    for record in records:
        assert record is not None
        assert record.device is not None
        assert record.device["backend"] == "numpy"
    kinds = [event.kind for event in events]
    assert kinds.count("worker hung") == 2
    assert kinds.count("backend excluded") == 1
