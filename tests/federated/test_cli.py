"""The command, in this process: what it prints for machines, and one line for each mistake."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client import __version__, trainer
from client.fields import overlay
from server.bench import train as bench
from server.bench.start import Start
from server.cli import run
from server.store import Store
from tests import fakes
from tests.json_doc import assert_documented, documented

N = 90
Text = pytest.CaptureFixture[str]


def write_experiment(folder: Path, **over: Any) -> Path:
    """Two nodes, two rounds, 30 examples kept apart; ``over`` is laid over it."""
    value = {
        "name": "small",
        "seed": 3,
        "model": fakes.MODEL,
        "data": {
            "source": "data.npz",
            "holdout": 30,
            "partition": {"kind": "iid", "nodes": 2},
        },
        "train": {"lr": 0.1, "momentum": 0.9, "batch": 8, "local_epochs": 3},
        "federation": {"rounds": 2},
        "devices": {"backend": "numpy"},
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(overlay(value, over)))
    return path


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment's file, in a working directory of its own."""
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    fakes.write_examples(work / "data.npz", N)
    return write_experiment(work)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, only to be read."""
    folder = tmp_path_factory.mktemp("finished")
    fakes.write_examples(folder / "data.npz", N)
    out = folder / "run"
    assert run(["simulate", str(write_experiment(folder)), "--out", str(out)]) == 0
    return out


def succeeds(capsys: Text, *arguments: object) -> list[str]:
    """Lines on stdout of a command that succeeds and says nothing on stderr."""
    capsys.readouterr()
    code = run([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out.splitlines()


def printed(capsys: Text, *arguments: object) -> dict[str, Any]:
    """The JSON object on the last line."""
    *table, last = succeeds(capsys, *arguments, "--json")
    assert table
    value = json.loads(last)
    assert isinstance(value, dict)
    return value


def fails(capsys: Text, code: int, *arguments: object) -> str:
    """The one line on stderr of a command that fails with this exit code."""
    capsys.readouterr()
    found = run([str(a) for a in arguments])
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert err.startswith("pocketfed: error: ")
    assert "Traceback" not in err
    assert found == code, err
    return err.removeprefix("pocketfed: error: ").rstrip("\n")


# -- what succeeds ---------------------------------------------------------------------------


def test_simulate(experiment: Path, capsys: Text) -> None:
    value = printed(capsys, "simulate", experiment, "--out", "out")
    assert_documented("simulate", value)
    assert (value["run"], value["rounds"], value["resumed_from_round"]) == ("out", 2, None)
    assert value["final_accuracy"] > 0.9
    assert Path(value["model_file"]).is_file()


def test_simulate_for_people(experiment: Path, capsys: Text) -> None:
    lines = succeeds(capsys, "simulate", experiment, "--out", "out")
    assert lines[0] == "small: 2 rounds, 2 nodes; out"
    starts = [line.split(":")[0] for line in lines[1:4]]
    assert starts == ["preparing devices", "round 1/2", "round 2/2"]
    assert lines[-1] == "run: out"
    assert lines[-3].startswith("slowest node: node-")


def test_settings_are_laid_over_the_experiment(experiment: Path, capsys: Text) -> None:
    arguments = ["--set", "federation.rounds=1", "--set", "train.lr=1e-2", "--out", "out"]
    assert printed(capsys, "simulate", experiment, *arguments)["rounds"] == 1
    resolved = yaml.safe_load(Path("out/experiment.yaml").read_text())
    assert (resolved["train"]["lr"], resolved["federation"]["rounds"]) == (0.01, 1)


def test_runs_are_named_by_experiment_and_time(experiment: Path, capsys: Text) -> None:
    value = printed(capsys, "simulate", experiment)
    assert Path(value["run"]).parent == Path("runs")
    assert Path(value["run"]).name.startswith("small-")


def test_without_central_examples_the_accuracy_is_null(experiment: Path, capsys: Text) -> None:
    value = printed(capsys, "simulate", experiment, "--set", "data.holdout=0")
    assert_documented("simulate", value)
    assert value["final_accuracy"] is None


def test_resume_and_replay(experiment: Path, capsys: Text, finished: Path) -> None:
    again = printed(capsys, "simulate", "--replay", finished, "--out", "again")
    assert_documented("simulate", again)
    model = Path("again/model.safetensors").read_bytes()
    assert model == (finished / "model.safetensors").read_bytes()
    resumed = printed(capsys, "simulate", "--resume", "again")
    assert_documented("simulate", resumed)
    assert (resumed["resumed_from_round"], resumed["rounds"]) == (2, 2)
    assert Path("again/model.safetensors").read_bytes() == model


def test_compare(finished: Path, experiment: Path, capsys: Text) -> None:
    value = printed(capsys, "compare", finished)
    assert_documented("compare", value)
    assert [(r["round"], r["node"]) for r in value["rounds"]] == [
        (n, f"node-{i}") for n in (1, 2) for i in (0, 1)
    ]
    for row in value["rounds"]:
        parts = sum(row["phases"].values()) + row["unattributed_s"]
        assert parts == pytest.approx(row["wall_s"])
        assert row["dispatch_to_reply_s"] >= row["wall_s"]
    assert len(value["nodes"]) == 2
    assert len(value["devices"]) == 1


def test_compare_by_node_and_as_csv(finished: Path, experiment: Path, capsys: Text) -> None:
    lines = succeeds(capsys, "compare", finished, "--by", "node", "--csv", "rounds.csv")
    found = [line.split()[0] for line in lines if line.lstrip().startswith("node-")]
    assert list(dict.fromkeys(found)) == ["node-0", "node-1"]
    with Path("rounds.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert [(r["round"], r["node"]) for r in rows] == [
        (str(n), f"node-{i}") for n in (1, 2) for i in (0, 1)
    ]
    assert all(float(r["train_s"]) > 0 for r in rows)


def test_evaluate(finished: Path, experiment: Path, capsys: Text) -> None:
    fakes.write_examples(Path("new.npz"), 33, seed=9)
    value = printed(capsys, "evaluate", finished / "model.safetensors", "--data", "new.npz")
    assert_documented("evaluate", value)
    assert (value["examples"], value["model"]) == (33, "small")
    assert value["accuracy"] > 0.9
    assert sum(c["examples"] for c in value["classes"].values()) == 33


def test_predict_with_and_without_labels(finished: Path, experiment: Path, capsys: Text) -> None:
    x, y = fakes.examples(33, seed=9)
    np.savez("labelled.npz", x=x, y=y)
    np.savez("unlabelled.npz", x=x)
    model = finished / "model.safetensors"
    both = [
        printed(capsys, "predict", model, "--data", f"{name}.npz", "--out", f"{name}.csv")
        for name in ("labelled", "unlabelled")
    ]
    assert_documented("predict", both[0])
    assert both[0] == both[1]
    found = [p["class"] for p in both[0]["predictions"]]
    assert np.mean(found == y) > 0.9
    assert Path("labelled.csv").read_text() == Path("unlabelled.csv").read_text()
    assert len(Path("labelled.csv").read_text().splitlines()) == 34


def test_predict_prints_as_many_as_asked(finished: Path, experiment: Path, capsys: Text) -> None:
    model = finished / "model.safetensors"
    lines = succeeds(capsys, "predict", model, "--data", "data.npz", "--limit", 4)
    assert lines[0].rstrip() == f"model.safetensors on data.npz: 4 of {N} examples"
    assert [line.split()[0] for line in lines[3:7]] == ["0", "1", "2", "3"]


def test_model(experiment: Path, capsys: Text) -> None:
    value = printed(capsys, "model", "lenet5")
    assert_documented("model", value)
    assert (value["params"], value["classes"], value["input_shape"]) == (61706, 10, [1, 28, 28])
    Path("own.yaml").write_text(yaml.safe_dump(fakes.MODEL))
    assert printed(capsys, "model", "own.yaml")["params"] == 16 * 8 + 8 + 8 * 3 + 3


def test_data_split(experiment: Path, capsys: Text) -> None:
    arguments = ["data.npz", "--nodes", 3, "--kind", "dirichlet", "--alpha", 1, "--out", "parts"]
    value = printed(capsys, "data", "split", *arguments, "--holdout", 9, "--seed", 2)
    assert_documented("data split", value)
    names = ["node-0", "node-1", "node-2", "holdout"]
    assert [Path(f["file"]) for f in value["files"]] == [Path("parts") / f"{n}.npz" for n in names]
    assert sum(f["examples"] for f in value["files"]) == N
    for f in value["files"]:
        with np.load(f["file"]) as arrays:
            assert len(arrays["y"]) == f["examples"] == sum(f["classes"].values())


def test_doctor(experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.register(monkeypatch, fakes.Fake("alpha"))
    value = printed(capsys, "doctor")
    assert_documented("doctor", value)
    assert value["healthy"] is True


def test_doctor_of_a_sick_machine_exits_with_1(
    experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, fakes.Fake("alpha", fail_to_compile=True))
    assert run(["doctor", "--json"]) == 1
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert_documented("doctor", value)
    assert value["healthy"] is False


def test_tune(experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backend is asked for, and what it says afterwards."""
    fake = fakes.Fake("alpha")
    fakes.register(monkeypatch, fake)
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(fakes.Fake, "tuning", lambda self, info: f"tuned {len(asked)} times")
    monkeypatch.setattr(fakes.Fake, "tune", lambda self, *given: asked.append(given[1:4]))
    Path("own.yaml").write_text(yaml.safe_dump(fakes.MODEL))
    arguments = ["--model", "own.yaml", "--budget", "2m", "--batch", "8", "--json"]
    capsys.readouterr()
    assert run(["tune", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "tuned 0 times" in err
    value = json.loads(out.splitlines()[-1])
    assert_documented("tune", value)
    assert asked == [([str(Path("own.yaml").absolute())], 8, 120.0)]
    assert value["devices"][0]["tuning"] == "tuned 1 times"


def test_nothing_to_tune(experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.register(monkeypatch, fakes.Fake("alpha", unavailable="no driver: get one"))
    assert run(["tune"]) == 1
    assert "no device here can be tuned: alpha: no driver: get one" in capsys.readouterr().err
    assert run(["tune", "--budget", "soon"]) == 2
    assert "needs seconds or minutes" in capsys.readouterr().err


def test_bench_train(experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_start", lambda *_: Start(cold_s=2.0, warm_s=1.0))
    Path("own.yaml").write_text(yaml.safe_dump(fakes.MODEL))
    arguments = ["--model", "own.yaml", "--batch", "2,3", "--backend", "numpy", "--groups", 1]
    capsys.readouterr()
    assert run(["bench", "train", *map(str, arguments), "--no-peer", "--json"]) == 0
    *_, last = capsys.readouterr().out.splitlines()  # stderr may tell of a busy machine
    value = json.loads(last)
    assert_documented("bench train", value)
    found = [(row["model"], row["batch"], row["torch_ms"]) for row in value["rows"]]
    assert found == [("small", 2, None), ("small", 3, None)]


def test_bench_kernels(experiment: Path, capsys: Text) -> None:
    Path("own.yaml").write_text(yaml.safe_dump(fakes.MODEL))
    arguments = ["--model", "own.yaml", "--batch", "2", "--backend", "numpy", "--no-peer"]
    capsys.readouterr()
    assert run(["bench", "kernels", *arguments, "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert_documented("bench kernels", value)
    assert {row["torch_ms"] for row in value["rows"]} == {None}
    assert [peak["backend"] for peak in value["peaks"]] == ["numpy"]


def test_the_version_is_told(capsys: Text) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"pocketfed {__version__}\n"


def test_help_shows_defaults_as_they_are(capsys: Text) -> None:
    assert run(["predict", "--help"]) == 0
    assert " [default: numpy]" in capsys.readouterr().out


def test_every_command_with_a_table_is_documented(capsys: Text) -> None:
    with_json = set()
    for command in commands():
        assert run([*command, "--help"]) == 0
        if "--json" in capsys.readouterr().out:
            with_json.add(" ".join(command))
    assert with_json == set(documented())


def commands() -> list[list[str]]:
    import typer

    from server.commands import app

    top = typer.main.get_command(app)
    found = []
    for name, command in top.commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        found += [[name]] if below is None else [[name, sub] for sub in below]
    return found


# -- what fails: an experiment ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.learning=0.1", "train.learning: unknown key; allowed: lr, batch"),
        ("train.lr=fast", "train.lr: found 'fast', needs a number"),
        ("train.lr=.nan", "train.lr: found nan, needs a finite number"),
        ("train.batch=0", "train.batch: found 0, must be at least 1"),
        ("train.lr", "--set train.lr: needs the form key.path=value, as in train.lr=0.05"),
        ("train.lr.x=1", "--set train.lr.x=1: 'train.lr' has no keys below it"),
        ("train.lr=[1", "--set train.lr=[1: not YAML"),
        ("devices.backend=opencll", "backend: found 'opencll', allowed: auto, "),
        ("model.layers=[soft]", "found 'soft', allowed: linear, "),
        ("model.layers=[flatten]", "the model has no parameters"),
        ("model.input.shape=[1,5,5]", "examples have shape (1, 4, 4), model 'small' needs"),
        ("data.source=mnst", "data.source: found 'mnst', allowed: mnist, digits"),
        ("data.source=none.npz", "data.source: no such file: "),
        ("data.source=small.yaml", "not a known kind of data file"),
        ("data.holdout=90", "data.holdout: found 90, but there are 90 examples"),
        ("data.partition.nodes=1000", "data.partition.nodes: found 1000"),
        ("federation.strategy.name=fedavgg", "found 'fedavgg', allowed: fedavg"),
        ("federation.quorum=3", "federation.quorum: found 3, but only 2 nodes take part"),
        ("name=a/b", "name: found 'a/b', allowed: letters"),
    ],
)
def test_a_wrong_setting_is_one_line(
    experiment: Path, capsys: Text, setting: str, said: str
) -> None:
    assert said in fails(capsys, 2, "simulate", experiment, "--set", setting)
    assert not Path("runs").exists()


def test_a_wrong_file_is_one_line(experiment: Path, capsys: Text) -> None:
    assert fails(capsys, 2, "simulate", "none.yaml") == "none.yaml: no such file"
    assert fails(capsys, 2, "simulate", ".") == ".: is a folder, needs a YAML file"
    assert "cannot be read" in fails(capsys, 2, "simulate", "data.npz")
    Path("list.yaml").write_text("- a\n")
    assert "needs a mapping" in fails(capsys, 2, "simulate", "list.yaml")
    Path("odd.yaml").write_text("a: [1\nb: 2\n")
    assert "odd.yaml: not YAML" in fails(capsys, 2, "simulate", "odd.yaml")
    Path("model.yaml").write_text("name: small\nmodel: nope\n")
    said = fails(capsys, 2, "simulate", "model.yaml")
    assert said.startswith("model.yaml: model: no file 'nope.yaml' beside the experiment")


def test_a_device_that_is_not_here_is_one_line(experiment: Path, capsys: Text) -> None:
    said = fails(capsys, 2, "simulate", experiment, "--set", "devices.device=TPU", "--out", "out")
    assert said.startswith("devices.device: found 'TPU', here: ")
    assert not Path("out").exists()  # found before the run begins


def save(x: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    return lambda: np.savez("data.npz", x=x, y=y)


X, Y = fakes.examples(N)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (save(np.where(np.arange(N * 16).reshape(N, 1, 4, 4) == 5, np.nan, X), Y), "not a number"),
        (save(X[:, :, :, :3], Y), "examples have shape (1, 4, 3), model 'small' needs (1, 4, 4)"),
        (save(X, Y + 1), "class 3 at index 2, model 'small' has 3 classes"),
        (save(X, Y[:-1]), "x has 90 examples and y has 89 labels"),
        (save(X, Y / 2), "needs whole class numbers"),
        (lambda: Path("data.npz").write_bytes(b"no zip"), "not a whole .npz file"),
    ],
    ids=["nan", "shape", "classes", "length", "fractions", "damaged"],
)
def test_unfit_data_are_one_line(
    experiment: Path, capsys: Text, spoil: Callable[[], None], said: str
) -> None:
    spoil()
    line = fails(capsys, 2, "simulate", experiment)
    assert "data.npz" in line
    assert said in line
    assert not Path("runs").exists()


def test_a_loss_that_explodes_is_one_line_with_its_cause(experiment: Path, capsys: Text) -> None:
    line = fails(capsys, 1, "simulate", experiment, "--set", "train.lr=1e30", "--out", "out")
    assert line.startswith("round 1: 0 of 2 nodes gave a usable reply, federation.quorum is 1")
    assert "node-0: the loss became" in line
    assert "lower train.lr (now 1e+30)" in line
    with Store.read(Path("out/run.db")) as store:
        assert {r.status for r in store.node_rounds(whole=False)} == {"failed"}
        assert store.events()[-1].kind == "failed"


def test_ctrl_c_is_exit_code_130(
    experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "train", interrupt)
    assert run(["simulate", str(experiment), "--out", "out"]) == 130
    assert capsys.readouterr().err == "pocketfed: interrupted\n"
    monkeypatch.undo()
    monkeypatch.chdir(experiment.parent)
    assert printed(capsys, "simulate", "--resume", "out")["rounds"] == 2


# -- what fails: folders, runs, model files --------------------------------------------------


def test_a_folder_that_cannot_be_used_is_one_line(experiment: Path, capsys: Text) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("")
    said = fails(capsys, 2, "simulate", experiment, "--out", "full")
    assert said.startswith("full: is not empty: choose another folder")
    said = fails(capsys, 1, "simulate", experiment, "--out", "full/file/run")
    assert said == "full/file/run: cannot be made: not a directory"
    said = fails(capsys, 1, "simulate", experiment, "--out", "full/file")
    assert said == "full/file: cannot be made: file exists"


def test_options_that_do_not_go_together_are_one_line(experiment: Path, capsys: Text) -> None:
    said = fails(capsys, 2, "simulate", experiment, "--resume", "out")
    assert said.startswith("simulate: found EXPERIMENT and --resume, needs one of")
    assert "found none" in fails(capsys, 2, "simulate")
    said = fails(capsys, 2, "simulate", "--resume", "out", "--set", "train.lr=1")
    assert said == "simulate: --set and --init go with EXPERIMENT, not with --resume"
    assert "--out does not go" in fails(capsys, 2, "simulate", "--resume", "a", "--out", "b")


@pytest.mark.parametrize(
    "arguments", [["compare"], ["simulate", "--resume"], ["simulate", "--replay"]], ids=" ".join
)
def test_what_is_no_run_is_one_line(experiment: Path, capsys: Text, arguments: list[str]) -> None:
    Path("empty").mkdir()
    for path in ("none", "empty"):
        said = fails(capsys, 1, *arguments, path)
        assert "no such run: give the folder of a run, as in runs/NAME-TIME" in said
    Path("bad").mkdir()
    Path("bad/run.db").write_bytes(b"no database, but long enough to be looked at" * 100)
    assert "run.db: is damaged or no run" in fails(capsys, 1, *arguments, "bad")
    Path("other").mkdir()
    with sqlite3.connect("other/run.db") as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    assert "other/run.db: " in fails(capsys, 1, *arguments, "other")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_model_file_that_is_none_is_one_line(
    finished: Path, experiment: Path, capsys: Text, command: str
) -> None:
    whole = (finished / "model.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(whole[:-5])
    Path("odd.safetensors").write_bytes(b"\xff" * 100)
    for path in ("cut.safetensors", "odd.safetensors"):
        said = fails(capsys, 1, command, path, "--data", "data.npz")
        assert said.startswith(f"{path}: is damaged or no safetensors file")
    said = fails(capsys, 1, command, "none.safetensors", "--data", "data.npz")
    assert said == "none.safetensors: cannot be read: no such file or directory"
    assert "is a directory" in fails(capsys, 1, command, ".", "--data", "data.npz")


def test_an_unfit_model_to_start_from_is_one_line(
    finished: Path, experiment: Path, capsys: Text
) -> None:
    arguments = ["--init", finished / "model.safetensors", "--set", "model=lenet5"]
    said = fails(capsys, 2, "simulate", experiment, *arguments, "--set", "data.source=digits")
    assert "parameters differ" in said


def test_other_commands_fail_in_one_line_too(
    finished: Path, experiment: Path, capsys: Text
) -> None:
    model = finished / "model.safetensors"
    said = fails(capsys, 2, "evaluate", model, "--data", "data.npz", "--backend", "nunpy")
    assert "found 'nunpy'" in said
    assert "did you mean 'numpy'?" in said
    assert "no such file" in fails(capsys, 2, "predict", model, "--data", "none.npz")
    said = fails(capsys, 1, "predict", model, "--data", "data.npz", "--out", "none/p.csv")
    assert said == "none/p.csv: cannot be written: No such file or directory"
    said = fails(capsys, 1, "compare", finished, "--csv", "none/rounds.csv")
    assert said == "none/rounds.csv: cannot be written: No such file or directory"
    assert "no file 'lenet.yaml'" in fails(capsys, 2, "model", "lenet")
    assert "nodes: is missing" in fails(capsys, 2, "data", "split", "data.npz", "--out", "parts")
    said = fails(
        capsys, 2, "data", "split", "data.npz", "--out", "p", "--kind", "idd", "--nodes", 2
    )
    assert "did you mean 'iid'?" in said
    said = fails(capsys, 2, "bench", "train", "--model", "none", "--no-peer")
    assert "no file 'none.yaml'" in said
    said = fails(capsys, 2, "bench", "train", "--batch", "8,x", "--no-peer")
    assert said == "--batch: found 'x', needs whole numbers from 1, as in 1,32"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?: see pocketfed --help"),
        (["simulate", "--sett", "a=1"], "No such option"),
        (["compare"], "Missing argument 'RUNS...': see pocketfed compare --help"),
        (["compare", "x", "--by", "phase"], "Invalid value for '--by'"),
        (["predict", "m", "--data", "d", "--limit", "-1"], "Invalid value for '--limit'"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys: Text, arguments: list[str], said: str) -> None:
    assert said in fails(capsys, 2, *arguments)


def test_without_arguments_help_is_shown(capsys: Text) -> None:
    assert run([]) == 2
    assert "Usage: pocketfed" in "".join(capsys.readouterr())


def test_what_cannot_be_looked_at(experiment: Path, capsys: Text) -> None:
    long = "x" * 300
    for command in (["compare", long], ["model", long], ["simulate", "--resume", long]):
        assert run(command) != 0
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "name too long" in lines[0]


def test_no_memory_for_the_model(experiment: Path, capsys: Text) -> None:
    over = {"model": {"layers": ["flatten", {"type": "linear", "out_features": 10**15}]}}
    assert run(["simulate", str(write_experiment(experiment.parent, **over))]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "not enough memory" in line


def test_no_home_folder(experiment: Path, capsys: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("POCKETFED_CACHE", "XDG_CACHE_HOME", "FLWR_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    assert run(["compare", "none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "set POCKETFED_CACHE to a folder" in line


def _command(arguments: str, **over: Any) -> subprocess.CompletedProcess[bytes]:
    """A shell's command line with pocketfed in a process of its own, as $P."""
    script = "from server.cli import main; main()"
    environment = {**os.environ, "P": f"{sys.executable} -c '{script}'"} | over
    return subprocess.run(
        ["bash", "-c", arguments], env=environment, capture_output=True, check=False
    )


@pytest.mark.slow
def test_standard_streams(experiment: Path) -> None:
    """The reader goes away; there is no room; the terminal knows ASCII only; streams are closed."""
    gone = _command(
        f'eval "$P simulate {experiment} --set federation.rounds=50" | true; '
        "exit ${PIPESTATUS[0]}"
    )
    assert (gone.returncode, gone.stderr) == (141, b"")
    full = _command('eval "$P model lenet5" > /dev/full')
    assert full.returncode == 1
    assert full.stderr == b"pocketfed: error: No space left on device\n"
    done = _command(f'eval "$P simulate {experiment} --out done" >&- 2>&- <&-')
    assert done.returncode == 0
    ascii_only = _command('eval "$P compare done"', PYTHONIOENCODING="ascii")
    assert ascii_only.returncode == 0, ascii_only.stderr
    assert b"quartiles" in ascii_only.stdout


@pytest.mark.slow
def test_names_that_are_not_unicode(experiment: Path) -> None:
    """A file's name is bytes; the record is text."""
    odd = experiment.parent / os.fsdecode(b"odd\xff")
    assert _command(f"eval \"$P simulate {experiment} --out $'odd\\xff'\"").returncode == 0
    assert _command("eval \"$P simulate --replay $'odd\\xff' --out again\"").returncode == 0
    with Store.read(experiment.parent / "again" / "run.db") as store:
        (note,) = [e.message for e in store.events() if e.kind == "replay"]
    assert "odd\\udcff" in note
    (odd / "small.yaml").write_text(experiment.read_text())
    refused = _command("eval \"$P simulate $'odd\\xff/small.yaml'\"")
    assert refused.returncode == 2
    assert b"not Unicode" in refused.stderr
