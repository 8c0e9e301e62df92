"""Start, resume, replay with the real ClientApp on small data, and the run's folder."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client.config import Experiment
from client.errors import ConfigError, DataError, ModelError, StoreError
from client.fields import overlay, parse
from server import files, simulate
from server.folder import RunFolder
from server.model_file import load_model_file, save_model
from server.store import Store

MODEL = {
    "name": "small",
    "input": {"shape": [6]},
    "layers": [
        {"type": "linear", "name": "fc1", "out_features": 8},
        "relu",
        {"type": "dropout", "p": 0.25},
        {"type": "linear", "name": "fc2", "out_features": 3},
    ],
}

EXPERIMENT = {
    "name": "small",
    "model": MODEL,
    "data": {
        "source": "data.npz",
        "holdout": 30,
        "partition": {"kind": "iid", "nodes": 4},
    },
    "train": {"lr": 0.1, "batch": 8, "local_epochs": 2, "momentum": 0.9},
    "federation": {"rounds": 4, "strategy": {"name": "fedavgm", "server_momentum": 0.5}},
    "devices": {"backend": "numpy"},
    "seed": 3,
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with the data set: three classes that a small network can tell apart."""
    g = np.random.default_rng(0)
    y = g.integers(0, 3, 210).astype(np.int32)
    x = g.normal(size=(210, 6)).astype(np.float32)
    x[np.arange(210), y] += 3
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path


def experiment(**over: Any) -> Experiment:
    return parse(Experiment, overlay(EXPERIMENT, over), "small.yaml")


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_model_file(folder / "model.safetensors")[1]


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_a_run_leaves_all_that_is_needed_to_understand_it(base: Path) -> None:
    out = base / "run"
    result = simulate.start(experiment(), base, out)
    assert result.rounds == 4
    assert result.final_accuracy is not None
    assert result.final_accuracy > 0.8
    assert json.loads(json.dumps(result.to_json()))["run"] == str(out)
    names = {p.name for p in out.iterdir()}
    assert names >= {"run.db", "experiment.yaml", "versions.json", "log.txt", "model.safetensors"}
    assert len(list((out / "checkpoints").iterdir())) == 2
    text = yaml.safe_load((out / "experiment.yaml").read_text())
    assert parse(Experiment, text, "experiment.yaml") == experiment()
    versions = json.loads((out / "versions.json").read_text())
    assert {"pocketfed", "kernels", "python", "flwr", "numpy"} <= set(versions)
    assert "round 4: 4 replies" in (out / "log.txt").read_text()
    model, _ = load_model_file(out / "model.safetensors")
    assert model == MODEL
    with Store.read(out / "run.db") as store:
        rows = store.node_rounds()
        assert len(rows) == 16
        assert {r.status for r in rows} == {"ok"}
        assert all(r.record is not None and r.record.phases["train"] > 0 for r in rows)


def test_it_says_nothing_on_the_terminal(base: Path, capfd: pytest.CaptureFixture[str]) -> None:
    simulate.start(experiment(), base, base / "run")
    assert capfd.readouterr() == ("", "")


def test_equal_seeds_give_equal_weights_and_others_do_not(base: Path) -> None:
    simulate.start(experiment(), base, base / "1")
    simulate.start(experiment(), base, base / "2")
    simulate.start(experiment(seed=4), base, base / "3")
    assert_equal(weights(base / "1"), weights(base / "2"))
    assert not np.array_equal(weights(base / "1")["fc1.bias"], weights(base / "3")["fc1.bias"])
    # nor does a run inherit what the nodes of an earlier one in this process had chosen
    with Store.read(base / "1" / "run.db") as one, Store.read(base / "2" / "run.db") as two:
        reasons = [[r.record.reason for r in s.node_rounds() if r.record] for s in (one, two)]
    assert reasons[0] == reasons[1]
    assert "kept" not in reasons[0][0]


def test_a_replay_ends_with_equal_weights(base: Path) -> None:
    start = {"fc1.weight": (8, 6), "fc1.bias": (8,), "fc2.weight": (3, 8), "fc2.bias": (3,)}
    init = base / "init.safetensors"
    save_model(init, MODEL, {k: np.full(s, 0.1, np.float32) for k, s in start.items()}, {})
    over = {"federation": {"nodes_per_round": 2}}
    simulate.start(experiment(**over), base, base / "1", init=init)
    result = simulate.replay(base / "1", base / "2")
    assert result.rounds == 4
    assert_equal(weights(base / "1"), weights(base / "2"))
    with Store.read(base / "1" / "run.db") as first, Store.read(base / "2" / "run.db") as second:
        assert first.choices() == second.choices()
        reasons = {r.record.reason for r in second.node_rounds() if r.record}
    assert reasons == {"recorded choice"}


def test_a_model_file_to_start_from_is_used_and_checked(base: Path) -> None:
    simulate.start(experiment(), base, base / "1")
    init = base / "1" / "model.safetensors"
    started = simulate.start(experiment(federation={"rounds": 1}), base, base / "2", init=init)
    fresh = simulate.start(experiment(federation={"rounds": 1}), base, base / "3")
    assert started.final_loss is not None
    assert fresh.final_loss is not None
    assert started.final_loss < fresh.final_loss
    arrays = weights(base / "1")
    save_model(base / "nan", MODEL, arrays | {"fc1.bias": arrays["fc1.bias"] * np.nan}, {})
    with pytest.raises(DataError, match=r"nan: fc1\.bias holds values that are not finite"):
        simulate.start(experiment(), base, base / "4", init=base / "nan")
    del arrays["fc1.bias"]
    save_model(base / "short", MODEL, arrays, {})
    with pytest.raises(ModelError, match=r"short: .*missing \['fc1\.bias'\]"):
        simulate.start(experiment(), base, base / "4", init=base / "short")
    assert not (base / "4").exists()


@pytest.mark.parametrize(
    ("over", "error", "message"),
    [
        ({"federation": {"strategy": {"name": "fedavg"}}}, ConfigError, "server_momentum: "),
        ({"data": {"source": "none.npz"}}, DataError, "none.npz"),
    ],
)
def test_what_is_wrong_is_said_before_a_folder_is_made(
    base: Path, over: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate.start(experiment(**over), base, base / "run")
    assert not (base / "run").exists()


def test_a_folder_that_holds_something_is_refused(base: Path) -> None:
    (base / "run").mkdir()
    (base / "run" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="is not empty"):
        simulate.start(experiment(), base, base / "run")
    assert [p.name for p in (base / "run").iterdir()] == ["mine.txt"]


def test_a_disk_that_is_full_at_the_end_says_how_to_go_on(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rounds are whole then, and only the model's file is left to write."""
    real = files.write_atomically

    def full(path: Path, content: bytes) -> None:
        if path.name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    said = r"run/model\.safetensors: .*: no space left on device: free .* go on by --resume$"
    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(StoreError, match=said):
        simulate.start(experiment(), base, base / "run")
    monkeypatch.undo()
    assert simulate.resume(base / "run").rounds == 4
    assert weights(base / "run")


def test_a_full_disk_at_the_log_says_how_to_go_on_once_there_is_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log.symlink_to("/dev/full")
    said = r"log\.txt: cannot be written: no space left on device"
    with folder.logging():
        with pytest.raises(StoreError, match=rf"{said}$"):
            logging.getLogger("server").warning("told")
        folder.db.touch()
        with pytest.raises(StoreError, match=rf"{said}: free some space, then go on by --resume$"):
            logging.getLogger("server").warning("told")


def test_runs_are_named_by_experiment_and_time(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    paths = {RunFolder.create(None, "small").path for _ in range(3)}
    assert len(paths) == 3
    assert all(p.parent.name == "runs" and p.name.startswith("small-2") for p in paths)


def test_one_run_has_one_writer(base: Path) -> None:
    out = base / "run"
    simulate.start(experiment(), base, out)
    with (
        RunFolder.existing(out).locked(),
        pytest.raises(StoreError, match=f"is being written by process {os.getpid()}"),
    ):
        simulate.resume(out)


def test_a_run_whose_data_changed_neither_goes_on_nor_is_repeated(base: Path) -> None:
    """One value of 1,260 is another; the same examples in a new file are the same data."""
    out = base / "run"
    simulate.start(experiment(), base, out)
    with np.load(base / "data.npz") as file:
        x, y = file["x"], file["y"]
    np.savez_compressed(base / "data.npz", x=x, y=y)
    simulate.resume(out)
    simulate.replay(out, base / "again")
    x[7, 3] += 1
    np.savez(base / "data.npz", x=x, y=y)
    with Store.read(out / "run.db") as store:
        recorded = store.data_sha256()
    said = rf"data.npz: changed .* was {recorded}, now it is (?!{recorded})[0-9a-f]{{64}}: put"
    with pytest.raises(DataError, match=said):
        simulate.resume(out)
    with pytest.raises(DataError, match=said):
        simulate.replay(out, base / "another")
    assert not (base / "another").exists()


def test_what_is_no_run_cannot_be_resumed_or_replayed(base: Path) -> None:
    for what in (simulate.resume, simulate.replay):
        with pytest.raises(StoreError, match="no such run"):
            what(base / "none")
    assert not (base / "none").exists()


_RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_simulate as t
base, out = Path(sys.argv[2]), Path(sys.argv[3])
if out.exists():
    t.simulate.resume(out)
else:
    t.simulate.start(t.experiment(federation={"rounds": 40}), base, out)
"""


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_the_weights_are_equal(base: Path) -> None:
    """kill -9 ten times, wherever it strikes; then the run is finished."""
    simulate.start(experiment(federation={"rounds": 40}), base, base / "whole")
    out = base / "run"
    command = [sys.executable, "-c", _RUN, str(Path(__file__).parent), str(base), str(out)]
    g = random.Random(1)
    kills = 0
    while kills < 10:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            before = _rows(out)
            while process.poll() is None and _rows(out) <= before:
                time.sleep(0.002)
            time.sleep(g.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            assert process.wait() in (-signal.SIGKILL, 0), process.stderr.read()  # type: ignore[union-attr]
        kills += 1
    simulate.resume(out)
    assert_equal(weights(out), weights(base / "whole"))
    with Store.read(out / "run.db") as store:
        assert [r.round for r in store.rounds()] == list(range(1, 41))
        assert len(store.node_rounds()) == 160
        assert len(store.sessions()) == 11


def _rows(out: Path) -> int:
    try:
        with Store.read(out / "run.db") as store:
            return len(store.node_rounds(whole=False))
    except StoreError:
        return 0
