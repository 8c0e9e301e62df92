"""``simulate --engine ray``: Flower's simulation runtime ends as the inline engine does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from machines import POCKETFED, machines
from test_simulate import EXPERIMENT, base, experiment, weights

from client.errors import MissingExtraError
from client.fields import overlay
from server import simulate
from server.engine import ray as engine
from server.store import Store

__all__ = ["base"]


def pocketfed(base: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (base / "small.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    command = [str(Path(sys.executable).parent / "pocketfed"), *arguments]
    return subprocess.run(
        command,
        cwd=base,
        env={**os.environ, "POCKETFED_CACHE": str(base / "cache")},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_equal_weights_and_no_code_from_the_folder_it_starts_in(base: Path) -> None:
    pytest.importorskip("ray")
    (base / "client").mkdir()
    (base / "client" / "__init__.py").write_text("raise SystemExit('the wrong client ran')\n")
    two = overlay(EXPERIMENT, {"federation": {"rounds": 2}})
    (base / "two.yaml").write_text(yaml.safe_dump(two))
    first = pocketfed(base, "simulate", "two.yaml", "--engine", "ray", "--out", "short", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout.splitlines()[-1])["rounds"] == 2
    simulate.start(experiment(federation={"rounds": 2}), base, base / "inline")
    ours, theirs = weights(base / "short"), weights(base / "inline")
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
    with Store.read(base / "short" / "run.db") as store:
        assert len(store.node_rounds()) == 2 * 4
        assert {row.status for row in store.node_rounds()} == {"ok"}


@pytest.mark.slow
def test_a_run_whose_nodes_all_fail_ends_with_the_first_cause(base: Path) -> None:
    pytest.importorskip("ray")
    setting = "train.lr=1e30"
    done = pocketfed(
        base, "simulate", "small.yaml", "--set", setting, "--engine", "ray", "--out", "bad"
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("pocketfed: error: round 1: 0 of 4 nodes gave a usable reply"), last
    assert "first failure: node-" in last
    assert "<class" not in last
    with Store.read(base / "bad" / "run.db") as store:
        assert store.rounds() == []
        assert [e.kind for e in store.events()][-1] == "failed"


@pytest.mark.slow
def test_ended_by_sigterm_as_by_ctrl_c_with_nothing_left(base: Path) -> None:
    """Ray takes the signal for itself, and keeps a folder for each session, unless told."""
    pytest.importorskip("ray")
    long = overlay(EXPERIMENT, {"federation": {"rounds": 10000}})
    (base / "long.yaml").write_text(yaml.safe_dump(long))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="p") as temporary, machines(base) as here:
        command = (POCKETFED, "simulate", "long.yaml", "--engine", "ray", "--out", "ended")
        program = here.start("ray", *command, TMPDIR=temporary)
        program.waits_for("round 2/")
        # beside it, files come and go by which processes find out where they may write
        (folder,) = (path for path in Path(temporary).iterdir() if path.is_dir())
        assert (folder / "session_latest").exists()
        assert program.interrupt(signal.SIGTERM) == 130, program.text()
        assert os.listdir(temporary) == []
    assert program.text().splitlines()[-1] == "pocketfed: interrupted"
    assert "SIGTERM" not in program.text()


def test_without_ray_one_line_names_the_extra(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pocketfed\[ray\]'"):
        simulate.start(experiment(), base, base / "out", engine="ray")
    assert not (base / "out").exists()
