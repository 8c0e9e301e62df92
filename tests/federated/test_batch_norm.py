"""Batch norm in a federation: averaged with the weights, or each node's own."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client import trainer
from client.config import Experiment
from client.errors import ConfigError
from client.fields import overlay, parse
from client.model import Model, build_model
from client.trainer import Outcome
from server.cli import run
from server.model_file import load_model_file
from server.store import Store
from tests import fakes

MODEL = {
    "name": "small",
    "input": {"shape": [1, 4, 4], "mean": [0.4], "std": [0.3]},
    "layers": [
        "flatten",
        {"type": "linear", "name": "fc1", "out_features": 8},
        {"type": "batchnorm1d", "name": "bn"},
        "relu",
        {"type": "linear", "name": "fc2", "out_features": 3},
    ],
}
ADAPTIVE = [
    {"name": "fedavgm", "server_momentum": 0.9},
    {"name": "fedadam", "eta": 0.5, "tau": 0.001},
    {"name": "fedyogi", "eta": 0.5, "tau": 0.001},
]
Rounds = dict[int, dict[str, tuple[np.ndarray, Outcome]]]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """round -> partition -> (values that the node began with, what came of them)."""
    seen: Rounds = defaultdict(dict)
    real = trainer.train

    def train(course: Any, params: Any, task: Any, *rest: Any) -> Outcome:
        outcome = real(course, params, task, *rest)
        seen[task.round][task.partition] = (params.copy(), outcome)
        return outcome

    monkeypatch.setattr(trainer, "train", train)
    return seen


def simulate(folder: Path, *arguments: object, **over: Any) -> int:
    value = {
        "name": "small",
        "seed": 3,
        "model": MODEL,
        "data": {
            "source": "data.npz",
            "holdout": 30,
            "node_holdout": 0.2,
            "partition": {"kind": "dirichlet", "alpha": 5, "nodes": 3, "min_examples": 5},
        },
        "train": {"lr": 0.1, "momentum": 0.9, "batch": 8},
        "federation": {"rounds": 3, "evaluate_nodes": True},
        "devices": {"backend": "numpy"},
    }
    fakes.write_examples(folder / "data.npz", 120)
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(overlay(value, over)))
    return run(["simulate", str(path), *map(str, arguments)])


def own(model: Model, values: np.ndarray) -> np.ndarray:
    return np.concatenate([values[p.slice] for p in model.batch_norm])


@pytest.mark.parametrize("strategy", [{"name": "fedavg"}, *ADAPTIVE], ids=lambda s: s["name"])
def test_running_statistics_are_averaged(work: Path, trained: Rounds, strategy: Any) -> None:
    """By examples, also where a strategy steps beyond the average of all other values."""
    assert simulate(work, "--out", "run", federation={"strategy": strategy}) == 0
    model = build_model(MODEL, "small")
    for number in (2, 3):
        before = [outcome for _, outcome in trained[number - 1].values()]
        weights = [outcome.num_examples for outcome in before]
        mean = np.average([outcome.params for outcome in before], axis=0, weights=weights)
        for start, _ in trained[number].values():
            for buffer in model.buffers:
                at = buffer.slice
                np.testing.assert_allclose(start[at], mean[at], rtol=1e-5, atol=1e-6)
            stepped = np.abs(start - mean)[: model.num_params].max() > 1e-3
            assert number == 2 or stepped == (strategy["name"] != "fedavg")
    _, arrays = load_model_file(work / "run" / "model.safetensors")
    assert list(arrays) == [v.name for v in model.values]
    assert arrays["bn.running_var"].min() > 0


def test_a_node_with_a_negative_variance_is_left_out(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be nothing but NaN in whoever evaluates the mean."""
    real = trainer.train
    place = next(v for v in build_model(MODEL, "small").buffers if v.variance).slice

    def train(course: Any, params: Any, task: Any, *rest: Any) -> Outcome:
        outcome = real(course, params, task, *rest)
        if task.partition == "node-1":
            outcome.params[place] = -0.25
        return outcome

    monkeypatch.setattr(trainer, "train", train)
    assert simulate(work, "--out", "run") == 0
    with Store.read(work / "run" / "run.db") as store:
        bad = [(r.round, r.partition, r.error) for r in store.node_rounds() if r.status != "ok"]
    reason = "arrays.bn.running_var: holds a negative variance (-0.25)"
    assert bad == [(number, "node-1", reason) for number in (1, 2, 3)]
    _, arrays = load_model_file(work / "run" / "model.safetensors")
    assert arrays["bn.running_var"].min() > 0


def test_local_batch_norm_stays_on_its_node(work: Path, trained: Rounds) -> None:
    """Scale, shift and statistics go on where the node left them; the rest is everybody's."""
    federation = {"batch_norm": "local", "nodes_per_round": 2, "rounds": 5}
    assert simulate(work, "--out", "run", federation=federation) == 0
    model = build_model(MODEL, "small")
    kept: dict[str, np.ndarray] = {}
    went_on = 0
    for number in sorted(trained):
        starts = []
        for partition, (start, outcome) in trained[number].items():
            if partition in kept:
                np.testing.assert_array_equal(own(model, start), kept[partition])
                went_on += 1
            kept[partition] = own(model, outcome.params)
            starts.append(model.views(start)["fc1.weight"])
        np.testing.assert_array_equal(starts[0], starts[-1])
    assert went_on > 3
    a, b, *_ = kept.values()
    assert np.abs(a - b).min() > 0
    with Store.read(work / "run" / "run.db") as store:
        notes = [event.message for event in store.events() if event.kind == "batch norm"]
    assert notes == [
        "each node keeps its own; central figures and the model file are of their mean"
    ]


def test_a_resumed_run_has_each_nodes_own(
    work: Path, trained: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = {"batch_norm": "local"}
    assert simulate(work, "--out", "whole", federation=federation) == 0
    recorded, calls = trainer.train, 0

    def interrupted(*given: Any) -> Outcome:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return recorded(*given)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train", interrupted)
        assert simulate(work, "--out", "cut", federation=federation) == 130
    assert run(["simulate", "--resume", "cut"]) == 0
    whole, cut = ((work / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_local_batch_norm_needs_a_model_that_has_some(work: Path) -> None:
    over = overlay(fakes.experiment(work).to_dict(), {"federation": {"batch_norm": "local"}})

    with pytest.raises(ConfigError, match=r"federation.batch_norm: found 'local', but model 'sma"):
        parse(Experiment, over, "small.yaml").build()
