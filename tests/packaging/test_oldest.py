"""The device worker with the oldest packages that Flower admits beside itself."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEEDED = ("grpcio", "numpy", "protobuf", "pyyaml")
"""All that a worker imports beside pocketfed itself."""

_ROUNDS = """
import json, sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import client
from client.backends.recipe import Hyper
from client.config import load_experiment
from client.model import initialise
from client.timing import RoundClock
from client.trainer import Task
from client.worker.protocol import ADDRESS_VARIABLE, read_token
from client.worker.remote import RemoteSession
from client.worker.session import Session
from client.worker.supervisor import hosted_worker

root, work, packages = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
assert Path(client.__file__).is_relative_to(root), client.__file__
g = np.random.default_rng(0)
np.savez(work / "old.npz", x=g.random((40, 1, 28, 28), np.float32), y=np.arange(40) % 10)
(work / "old.yaml").write_text('''
name: old
model:
  name: wide
  input: {shape: [1, 28, 28]}
  layers:
    - flatten
    - {type: linear, name: fc1, out_features: 400}
    - relu
    - {type: linear, name: fc2, out_features: 10}
data: {source: old.npz, node_holdout: 0.2, partition: {nodes: 1}}
train: {lr: 0.01}
federation: {rounds: 1}
devices: {backend: numpy}
''')
experiment = load_experiment(work / "old.yaml")


def rounds(session):
    params, records = initialise(session.model, 0), []
    for number in (1, 2):
        task = Task(number, 0, "old", local_epochs=1, batch=32, hyper=Hyper(lr=0.01))
        clock = RoundClock()
        outcome, record = session.train(task, work / "old.npz", params, None, clock)
        record.set_timing(clock.stop())
        params = outcome.params
        records.append(json.loads(record.to_json()))
    metrics, _ = session.evaluate("old", work / "old.npz", params, RoundClock())
    return params, metrics, records


if __name__ == "__main__":
    here = rounds(Session(experiment, work))
    with hosted_worker() as variables:
        session = RemoteSession(
            experiment, work, variables[ADDRESS_VARIABLE], read_token(variables)
        )
        there = rounds(session)
        session.close()
    print(json.dumps({
        "versions": {name: version(name) for name in packages},
        "equal": bool(np.array_equal(here[0], there[0])) and here[1] == there[1],
        "moved": float(np.abs(there[0] - initialise(session.model, 0)).max()),
        "nbytes": there[0].nbytes,
        "phases": [sorted(record["phases"]) for record in there[2]],
        "events": [record["events"] for record in there[2]],
    }))
"""


def oldest() -> dict[str, str]:
    """Package -> the oldest version that Flower's own metadata admits."""
    required = importlib.metadata.requires("flwr") or []
    found = (re.match(r"([\w-]+).*>=([\d.]+)", line) for line in required if "extra" not in line)
    return {m[1]: m[2] for m in found if m and m[1] in NEEDED}


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], env=more or None, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_worker_trains_with_the_oldest_packages_that_flower_admits(tmp_path: Path) -> None:
    versions = oldest()
    assert set(versions) == set(NEEDED)
    python = tmp_path / "venv" / "bin" / "python"
    assert run(sys.executable, "-m", "venv", tmp_path / "venv").returncode == 0
    pins = [f"{name}=={version}" for name, version in versions.items()]
    done = run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *pins)
    assert "ResolutionImpossible" not in done.stderr, done.stderr  # they exclude each other
    if done.returncode != 0:  # for this Python, on the way from PyPI, or on this disk
        pytest.skip(f"no wheels of {', '.join(pins)} here: {done.stderr[-300:]}")
    script = tmp_path / "rounds.py"
    script.write_text(_ROUNDS)
    where = {"PYTHONPATH": str(ROOT), "POCKETFED_CACHE": str(tmp_path / "cache")}
    # protobuf 5.28 remarks that what 5.27 generated is older, which is how it works with both
    strict = ("-W", "error", "-W", "ignore:Protobuf gencode version:UserWarning")
    done = run(python, *strict, script, ROOT, tmp_path, *NEEDED, **where)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"] == versions
    assert found["equal"]
    assert found["moved"] > 0
    assert found["nbytes"] > 2**20  # parameters went over in more than one chunk
    assert all("handover" in phases for phases in found["phases"])
    assert found["events"] == [[], []]
