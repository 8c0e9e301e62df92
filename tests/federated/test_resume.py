"""Interrupted, killed, repeated: by the command line, on the real ClientApp, to equal weights."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from client import trainer
from client.fields import overlay
from client.trainer import Outcome
from server.cli import run
from server.store import EventInfo, NodeRound, Store
from tests import fakes
from tests.fakes import Fake

STRATEGIES = [
    {"name": "fedavg"},
    {"name": "fedavgm", "server_momentum": 0.5},
    {"name": "fedadam", "eta": 0.01, "tau": 0.001},
]
Text = pytest.CaptureFixture[str]


def write_experiment(folder: Path, **over: Any) -> Path:
    """Two of three nodes train in each of four rounds, and evaluate on examples of their own."""
    value = {
        "name": "small",
        "seed": 3,
        "model": fakes.MODEL,
        "data": {
            "source": "data.npz",
            "holdout": 30,
            "node_holdout": 0.2,
            "partition": {"kind": "dirichlet", "alpha": 5, "nodes": 3, "min_examples": 5},
        },
        "train": {"lr": 0.1, "momentum": 0.9, "batch": 8, "local_epochs": 2},
        "federation": {"rounds": 4, "nodes_per_round": 2, "evaluate_nodes": True},
        "devices": {"backend": "numpy"},
    }
    fakes.write_examples(folder / "data.npz", 120)
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(overlay(value, over)))
    return path


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulate(*arguments: object) -> None:
    assert run(["simulate", *map(str, arguments)]) == 0


def interrupt(monkeypatch: pytest.MonkeyPatch, at_call: int, *arguments: object) -> None:
    """Ctrl-C while the ``at_call``-th node of the run trains."""
    calls = 0
    real = trainer.train

    def interrupted(*given: Any) -> Outcome:
        nonlocal calls
        calls += 1
        if calls == at_call:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "train", interrupted)
        assert run(["simulate", *map(str, arguments)]) == 130


def model(folder: str) -> bytes:
    """The final model with all that is said of it."""
    return (Path(folder) / "model.safetensors").read_bytes()


def read(folder: str) -> tuple[list[NodeRound], list[EventInfo]]:
    with Store.read(Path(folder) / "run.db") as store:
        return store.node_rounds(), store.events()


def told(rows: list[NodeRound]) -> list[tuple[Any, ...]]:
    """What must not depend on an interruption."""
    return [
        (r.round, r.partition, r.task, r.record.loss, r.record.accuracy, r.record.num_examples)
        for r in rows
        if r.record is not None
    ]


@pytest.mark.parametrize("at_call", [1, 4, 8])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: str(s["name"]))
def test_interrupted_and_resumed(
    work: Path, monkeypatch: pytest.MonkeyPatch, strategy: dict[str, Any], at_call: int
) -> None:
    path = write_experiment(work, federation={"strategy": strategy})
    simulate(path, "--out", "whole")
    interrupt(monkeypatch, at_call, path, "--out", "cut")
    assert not (work / "cut" / "model.safetensors").exists()
    simulate("--resume", "cut")
    assert model("cut") == model("whole")
    assert told(read("cut")[0]) == told(read("whole")[0])
    assert len(told(read("cut")[0])) == 16


def test_interrupted_more_than_once(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_experiment(work, federation={"strategy": STRATEGIES[1]})
    simulate(path, "--out", "whole")
    interrupt(monkeypatch, 3, path, "--out", "cut")
    interrupt(monkeypatch, 4, "--resume", "cut")
    simulate("--resume", "cut")
    assert model("cut") == model("whole")
    with Store.read(work / "cut" / "run.db") as store:
        assert [s.resumed_from_round for s in store.sessions()] == [None, 1, 2]
        assert [r.round for r in store.rounds()] == [1, 2, 3, 4]


@pytest.mark.parametrize("edit", ["", "more: [", "more: 2000-01-01"])
def test_an_experiment_edited_in_the_folder_changes_nothing_and_that_is_said(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text, edit: str
) -> None:
    interrupt(monkeypatch, 3, write_experiment(work), "--out", "cut")
    file = work / "cut" / "experiment.yaml"
    file.write_text(
        file.read_text() + edit if edit else file.read_text().replace("seed: 3", "seed: 4")
    )
    simulate("--resume", "cut")
    said = "experiment: cut/experiment.yaml was changed since the run began, which changes nothing"
    assert said in capsys.readouterr().out
    assert [e.kind for e in read("cut")[1]] == ["interrupted", "experiment"]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: str(s["name"]))
def test_repeated(work: Path, strategy: dict[str, Any]) -> None:
    path = write_experiment(work, federation={"strategy": strategy})
    simulate(path, "--out", "first")
    simulate("--replay", "first", "--out", "again")
    assert model("again") == model("first")
    assert told(read("again")[0]) == told(read("first")[0])


def test_repeating_needs_the_run_alone(work: Path) -> None:
    simulate(write_experiment(work), "--out", "first")
    (work / "small.yaml").unlink()
    shutil.rmtree(work / "first" / "checkpoints")
    simulate("--replay", "first", "--out", "again")
    assert model("again") == model("first")


def test_a_damaged_last_checkpoint_is_passed_over_and_said(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    path = write_experiment(work, federation={"strategy": STRATEGIES[2]})
    simulate(path, "--out", "whole")
    interrupt(monkeypatch, 7, path, "--out", "cut")  # in round 4
    last = work / "cut" / "checkpoints" / "round-00003.safetensors"
    content = bytearray(last.read_bytes())
    content[-1] ^= 1  # a bit of a weight
    last.write_bytes(content)
    capsys.readouterr()
    simulate("--resume", "cut")
    said = f"checkpoint: {last.relative_to(work)}: is damaged: its checksum is not the recorded one"
    assert f"{said}: the one before is used" in capsys.readouterr().out.splitlines()
    assert model("cut") == model("whole")
    assert told(read("cut")[0]) == told(read("whole")[0])
    assert [e.kind for e in read("cut")[1]] == ["interrupted", "checkpoint"]


def test_if_both_checkpoints_are_damaged_one_line_says_so(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    interrupt(monkeypatch, 7, write_experiment(work), "--out", "cut")
    for path in (work / "cut" / "checkpoints").iterdir():
        path.write_bytes(b"")
    capsys.readouterr()
    assert run(["simulate", "--resume", "cut"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no checkpoint of the run can be used" in err
    assert err.endswith("in a new folder by --replay cut\n")


# -- choices ---------------------------------------------------------------------------------


def placements(folder: str) -> list[tuple[str, str]]:
    """(backend, why) of each training."""
    return [
        (r.record.layout, r.record.reason)
        for r in read(folder)[0]
        if r.record is not None and r.record.placement is not None
    ]


def two_devices(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    both = [Fake(name, step_s=1.0 if name == faster else 3.0) for name in ("alpha", "beta")]
    fakes.register(monkeypatch, *both)
    monkeypatch.setattr("client.backends.names", lambda: ("alpha", "beta"))  # numpy: to compare


def test_repeating_a_run_repeats_its_placements_whatever_is_faster_now(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_experiment(work, devices={"backend": "auto"})
    two_devices(monkeypatch, faster="alpha")
    simulate(path, "--out", "first")
    assert {p for p, _ in placements("first")} == {"alpha"}
    two_devices(monkeypatch, faster="beta")
    simulate("--replay", "first", "--out", "again")
    assert set(placements("again")) == {("alpha", "recorded choice")}
    assert model("again") == model("first")
    simulate(path, "--out", "fresh")
    assert {p for p, _ in placements("fresh")} == {"beta"}


def test_going_on_keeps_to_the_choices_made(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_experiment(work, devices={"backend": "auto"}, federation={"nodes_per_round": 3})
    two_devices(monkeypatch, faster="alpha")
    interrupt(monkeypatch, 5, path, "--out", "cut")  # in round 2
    two_devices(monkeypatch, faster="beta")
    simulate("--resume", "cut")
    assert {p for p, _ in placements("cut")} == {"alpha"}


# -- kill -9 ---------------------------------------------------------------------------------

_MAIN = "from server.cli import main; main()"
_HELD = f"""
import time
from client import trainer

real, calls = trainer.train, []

def train(*given):
    calls.append(given)
    if len(calls) == 4:
        time.sleep(3600)
    return real(*given)

trainer.train = train
{_MAIN}
"""
"""A run that does not come to its end, however long it is left alone: the fourth training waits."""
_ROUNDS = 40
_KILLS = 10


def start(*arguments: object, code: str = _MAIN) -> subprocess.Popen[str]:
    """A process of its own, once its first line says that the run has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "simulate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"small: {_ROUNDS} rounds"), line + process.stdout.read()
    return process


@pytest.mark.slow
def test_killed_at_moments_spread_over_the_run(work: Path) -> None:
    """kill -9, ten times; where a run comes to its end before, another one is begun."""
    over = {"rounds": _ROUNDS, "strategy": STRATEGIES[2]}
    path = write_experiment(work, federation=over)
    with start(path, "--out", "whole") as process:
        began = time.monotonic()
        process.communicate()
        assert process.returncode == 0
        duration_s = time.monotonic() - began
    g = random.Random(7)
    kills, number, out = 0, 0, work / "run-0"
    while kills < _KILLS:
        resumes = ("--resume", out) if (out / "run.db").exists() else (path, "--out", out)
        with start(*resumes) as process:
            time.sleep(g.uniform(0, 2 * duration_s / (_KILLS + 2)))
            ended = process.poll() is not None
            process.kill()
            process.communicate()
        with Store.read(out / "run.db") as store:  # readable whenever it struck
            whole = [r.round for r in store.rounds()]
        assert whole == list(range(1, len(whole) + 1))
        kills += not ended
        if ended:
            assert model(out.name) == model("whole")
            number += 1
            out = work / f"run-{number}"
    if not (out / "run.db").exists():
        return
    with start("--resume", out) as process:
        rest, _ = process.communicate()
        assert process.returncode == 0, rest
    assert model(out.name) == model("whole")
    assert told(read(out.name)[0]) == told(read("whole")[0])
    with Store.read(out / "run.db") as store:
        assert [r.round for r in store.rounds()] == list(range(1, _ROUNDS + 1))
        resumed = [s.resumed_from_round for s in store.sessions()]
    assert resumed[0] is None
    assert resumed[1:] == sorted(r for r in resumed if r is not None)
    if number == 0:
        assert len(resumed) == _KILLS + 1


@pytest.mark.slow
def test_ended_by_sigterm_as_by_ctrl_c(work: Path) -> None:
    """What ends services and containers: noted in the record, and told."""
    path = write_experiment(work, federation={"rounds": _ROUNDS})
    with start(path, "--out", "ended", code=_HELD) as process:
        process.terminate()
        rest, _ = process.communicate()
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "pocketfed: interrupted"
    with Store.read(work / "ended" / "run.db") as store:
        assert [e.kind for e in store.events()][-1] == "interrupted"
    assert run(["simulate", "--resume", "ended"]) == 0
