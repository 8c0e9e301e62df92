"""Losses, optimizers, schedules and frozen layers through whole runs, on the real ClientApp."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import MetricRecord, RecordDict

from client import trainer, wire
from client.config import Experiment
from client.data import load
from client.errors import ConfigError, DataError
from client.record import NodeRecord
from client.trainer import Outcome
from server import inference, live, simulate
from server.engine.replies import Expected, RejectedError, check_foreign_reply, check_reply
from server.model_file import load_model_file
from server.store import Store
from tests import fakes

Text = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def experiment(folder: Path, y: np.ndarray | None = None, **over: Any) -> Experiment:
    """The small one on numpy, with other labels if any are given."""
    over.setdefault("devices", {"backend": "numpy"})
    made = fakes.experiment(folder, **over)
    if y is not None:
        x, _ = fakes.examples(60)
        np.savez(folder / "data.npz", x=x, y=y)
    return made


def run(made: Experiment, out: Path) -> dict[str, np.ndarray]:
    simulate.start(made, out.parent, out)
    return load_model_file(out / "model.safetensors")[1]


def initial(made: Experiment) -> dict[str, np.ndarray]:
    from server.run import seeded_parameters

    return seeded_parameters(made.build(), made.seed)


ADAM = {"lr": 0.01, "optimizer": "adamw", "momentum": 0.0, "weight_decay": 0.01}


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam", "fedmedian"])
def test_frozen_layers_stay_and_are_not_sent_back(work: Path, strategy: str) -> None:
    over = {"federation": {"strategy": {"name": strategy}}}
    made = experiment(work, train={"frozen": ["fc1"], **ADAM}, **over)
    free = experiment(work, train=ADAM, **over)
    after, start = run(made, work / "frozen"), initial(made)
    run(free, work / "free")
    assert list(after) == list(start)
    for name, value in after.items():
        assert np.array_equal(value, start[name]) == name.startswith("fc1")
    sent = {}
    for name in ("frozen", "free"):
        with Store.read(work / name / "run.db") as store:
            rows = store.node_rounds()
        sent[name] = [(r.bytes_up, r.bytes_down) for r in rows]
        assert {r.status for r in rows} == {"ok"}
    fc1_nbytes = 4 * (16 * 8 + 8)
    for (up, down), (all_up, all_down) in zip(sent["frozen"], sent["free"], strict=True):
        assert all_up - up > fc1_nbytes
        assert abs(all_down - down) < fc1_nbytes / 2


def test_a_frozen_run_is_resumed_and_replayed_to_equal_weights(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"frozen": ["fc1"], "schedule": {"kind": "cosine", "warmup_rounds": 1}, **ADAM}
    federation = {"rounds": 4, "strategy": {"name": "fedavgm", "server_momentum": 0.5}}
    made = experiment(work, train=train, federation=federation)
    whole = run(made, work / "whole")
    rounds = []
    real = trainer.train

    def interrupted(*args: Any, **kwargs: Any) -> Outcome:
        rounds.append(args[2].round)
        if args[2].round == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as m:
        m.setattr(trainer, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(made, work / "cut")
    simulate.resume(work / "cut")
    simulate.replay(work / "whole", work / "again")
    for name in ("cut", "again"):
        found = load_model_file(work / name / "model.safetensors")[1]
        for key, value in whole.items():
            np.testing.assert_array_equal(found[key], value)
    for name in ("whole", "cut", "again"):
        with Store.read(work / name / "run.db") as store:
            lrs = [info.lr for info in store.rounds()]
        assert lrs == pytest.approx([0.01, 0.01, 0.0075, 0.0025])


def test_the_rounds_learning_rate_is_what_nodes_train_with(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, float]] = []
    real = trainer.train

    def watched(*args: Any, **kwargs: Any) -> Outcome:
        seen.append((args[2].round, args[2].hyper.lr))
        return real(*args, **kwargs)

    monkeypatch.setattr(trainer, "train", watched)
    schedule = {"kind": "step", "step_rounds": 1, "factor": 0.5}
    run(experiment(work, train={"schedule": schedule}), work / "run")
    assert seen == [(1, 0.1), (1, 0.1), (2, 0.05), (2, 0.05)]


@pytest.mark.parametrize("name", ["mse", "bce_with_logits"])
def test_a_regression_and_a_multilabel_run(work: Path, name: str, capsys: Text) -> None:
    """From one file to the record, the tables and predictions; no accuracy where there is none."""
    _, classes = fakes.examples(60)
    y = np.eye(3)[classes] if name == "mse" else np.eye(3, dtype=np.uint8)[classes]
    over = {"holdout": 20, "node_holdout": 0.2}
    made = experiment(
        work, y, train={"loss": name}, data=over, federation={"evaluate_nodes": True, "rounds": 3}
    )
    with live.view() as observer:
        result = simulate.start(made, work, work / "run", observer=observer)
    live.summary(result)
    shown = capsys.readouterr().out
    with Store.read(work / "run" / "run.db") as store:
        infos, rows = store.rounds(), store.node_rounds()
    accurate = name != "mse"
    assert ("accuracy" in shown) == accurate
    assert "loss" in shown
    for info in infos:
        assert (info.accuracy is not None) == (info.node_accuracy is not None) == accurate
        assert info.loss is not None
        assert info.node_loss is not None
    records = [row.record for row in rows if row.record is not None]
    assert len(records) == len(rows) == 12
    assert all((record.accuracy is not None) == accurate for record in records)
    assert [r.num_examples for r in records] == ([16] * 2 + [4] * 2) * 3
    assert infos[-1].train_loss is not None
    assert infos[0].train_loss is not None
    assert infos[-1].train_loss < infos[0].train_loss
    trained = inference.load_trained(work / "run" / "model.safetensors")
    found = inference.evaluate(trained, load(str(work / "data.npz")), "numpy")
    assert (found["examples"], found["classes"]) == (60, {})
    assert (found["accuracy"] is not None) == accurate
    predictions = inference.predict(trained, str(work / "data.npz"), "numpy")
    what = "probability" if accurate else "value"
    assert predictions.columns == ("example", "output", what)
    values = np.array([row[-1] for row in predictions.rows]).reshape(60, 3)
    assert np.mean(values.argmax(1) == classes) > 0.6


def test_what_does_not_fit_is_one_clear_line(work: Path) -> None:
    _, classes = fakes.examples(60)
    targets = np.eye(3)[classes]
    with pytest.raises(DataError, match=r"data\.npz: y: found shape \(n, 3\).*y\.argmax\(1\)"):
        run(experiment(work, targets), work / "a")
    with pytest.raises(DataError, match=r"data\.npz: y: found int32 of shape \(n,\).*'small'"):
        run(experiment(work, classes, train={"loss": "mse"}), work / "b")
    with pytest.raises(ConfigError, match=r"train\.frozen: found 'fc3', .*did you mean 'fc"):
        run(experiment(work, train={"frozen": ["fc3"]}), work / "c")
    with pytest.raises(ConfigError, match=r"train\.frozen: leaves no parameters"):
        run(experiment(work, train={"frozen": ["fc1", "fc2"]}), work / "d")
    dirichlet = {"partition": {"kind": "dirichlet"}}
    with pytest.raises(ConfigError, match=r"partition\.kind: found 'dirichlet'.*iid or column"):
        run(experiment(work, targets, train={"loss": "mse"}, data=dirichlet), work / "e")


def test_what_a_foreign_node_sends_of_frozen_layers_is_left_out(work: Path) -> None:
    made = experiment(work, train={"frozen": ["fc1"]})
    model = made.build()
    expected = Expected.of(model, made.train.recipe.loss)
    arrays = wire.arrays_to_record(initial(made))
    metrics = MetricRecord({"num-examples": 3, "train_loss": 0.5})
    content = RecordDict({wire.ARRAYS: arrays, wire.METRICS: metrics})
    check_foreign_reply(content, "train", expected)
    assert list(content[wire.ARRAYS]) == ["fc2.weight", "fc2.bias"]
    ours = MetricRecord({"num-examples": 3, "train-loss": 0.5, "train-accuracy": 0.5})
    arrays = wire.arrays_to_record(initial(made))
    content = RecordDict({wire.ARRAYS: arrays, wire.METRICS: ours})
    wire.add_record(content, NodeRecord("node-0", num_examples=3))
    with pytest.raises(RejectedError, match=r"not in the model: fc1\.weight"):
        check_reply(content, "train", "node-0", expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--isolate"], ["--engine", "ray"]], ids=["isolate", "ray"])
def test_a_worker_and_ray_end_as_this_process_does(work: Path, how: list[str]) -> None:
    """AdamW, squared error, a schedule and a frozen layer go with the task and come back."""
    if "ray" in how:
        pytest.importorskip("ray")
    _, classes = fakes.examples(60)
    train = {"loss": "mse", "frozen": ["fc1"], "schedule": {"kind": "cosine"}, **ADAM}
    made = experiment(work, np.eye(3)[classes], train=train)
    here = run(made, work / "here")
    (work / "small.yaml").write_text(yaml.safe_dump(made.to_dict()))
    command = [str(Path(sys.executable).parent / "pocketfed"), "simulate", "small.yaml"]
    subprocess.run([*command, "--out", "there", *how], check=True, cwd=work)
    there = load_model_file(work / "there" / "model.safetensors")[1]
    for name, value in here.items():
        np.testing.assert_array_equal(there[name], value)
    for name in ("here", "there"):
        with Store.read(work / name / "run.db") as store:
            records = [row.record for row in store.node_rounds()]
        assert all(record is not None and record.accuracy is None for record in records)
