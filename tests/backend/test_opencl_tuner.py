"""The tuner: what it measures is kept and used, what fails or ends the process is skipped."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from client.backends import get
from client.backends.device_info import DeviceInfo
from client.backends.opencl import tuned, tuning
from client.backends.opencl.tuned import Tuned
from client.errors import DeviceError
from tests.backend.harness import Subject, assert_tensors_close, examples, network, numpy_device
from tests.backend.opencl_devices import first_device, open_device

if TYPE_CHECKING:
    from client.backends.opencl.tiles import Tile
    from client.backends.opencl.tuner import Tuner

MODEL = network(
    [1, 6, 6],
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3},
    "relu",
    "flatten",
    {"type": "linear", "name": "fc", "out_features": 70},
)
FOREVER = 1e9


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own."""
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    first_device()
    from client.backends.opencl import tuner

    lines: list[str] = []
    monkeypatch.setattr(tuner, "say", lines.append)
    return lines


def make_tuner(deadline_s: float = FOREVER) -> Tuner:
    from client.backends.opencl import tuner

    device = open_device()
    return tuner.Tuner(device, device.shipped, [tuner.Subject(MODEL, 8)], deadline_s)


def candidates(tuner: Tuner, choice: str) -> list[Tile]:
    """Tiles that are tried for a choice, the shipped one first."""
    return next(tiles for _, name, tiles in tuner._choices(tuner._shipped) if name == choice)


def share(monkeypatch: pytest.MonkeyPatch, answers: dict[str, float | Exception]) -> list[str]:
    """Let variants whose name has a part take so long; the others as long as what is shipped."""
    from client.backends.opencl import tuner

    asked = []

    def answer(self: Tuner, subject: Any, choice: str, target: Any, base: Any) -> float:
        name = tuned.marker(self._info).read_text()
        asked.append(name)
        found = next((a for part, a in answers.items() if part in name), 1.0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(tuner.Tuner, "_share", answer)
    return asked


def test_variants_are_timed_on_the_device(said: list[str]) -> None:
    """Without fakes: one variant of the costliest choice."""
    tuner = make_tuner()
    target = tuner._shipped
    subject, choice, tiles = tuner._choices(target)[0]
    assert choice in tuner._plan(subject, target).choices
    other = tuned.Tuned(tiles={choice: (tiles[1].rows, tiles[1].columns)}).target(target)
    assert tuner._measure("a variant", subject, choice, other, target) > 0
    kept = tuned.load(first_device())
    assert list(kept.measured) == ["a variant"]
    assert not tuned.marker(first_device()).exists()


def test_what_is_faster_is_used_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    tuner = make_tuner()
    before = tuner._shipped
    best = candidates(tuner, "gemm dot 8")[2]
    share(monkeypatch, {f"gemm dot 8: {best} ": 0.5, "gemm dot 8: ": 0.9, "conv_forward": 0.99})
    assert tuner.run()
    device = open_device()
    assert device.target != before
    assert device.target.tiles["gemm dot 8"] == (best.rows, best.columns)
    assert not any(name.startswith("conv_forward") for name in device.target.tiles)
    x, y = examples(MODEL, 8, "uint8")
    subject = Subject(device, MODEL, 8, x, y)
    assert ("fc", f"dot {best}") in subject.program.usage.variants
    results = [subject.gradients(8)]
    for dtype in (np.float64, np.float32):
        results.append(Subject(numpy_device(dtype), MODEL, 8, x, y).gradients(8))
    assert_tensors_close(MODEL, "gradient", *results)
    assert "choices changed" in get("opencl").tuning(first_device())


def test_another_target_is_used(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    before = open_device().target
    share(monkeypatch, {f"vectors of {before.vector // 2}, ": 0.5})
    assert make_tuner().run()
    device = open_device()
    assert device.target.vector == before.vector // 2
    program = device.compile(MODEL.whole, 8)
    assert program.usage.variants[0] == ("all", str(device.target))
    device.close()


def test_tuning_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    from client.backends.opencl import tuner

    asked = share(monkeypatch, {})
    clock = SimpleNamespace(monotonic=lambda: float(len(asked)), perf_counter=time.perf_counter)
    monkeypatch.setattr(tuner, "time", clock)
    assert not make_tuner(deadline_s=5).run()
    assert len(asked) == 5
    assert make_tuner().run()
    assert len(asked) == len(set(asked)) > 5


def test_a_variant_that_fails_is_skipped(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    error = DeviceError("does not build")
    tuner = make_tuner()
    bad, good = candidates(tuner, "gemm outer")[1:3]
    name = f"gemm outer: {bad} "
    asked = share(monkeypatch, {name: error, f"gemm outer: {good} ": 0.5})
    assert tuner.run()
    [(failed, why)] = tuned.load(first_device()).failed.items()
    assert (failed.startswith(name), why) == (True, "does not build")
    assert open_device().target.tiles["gemm outer"] == (good.rows, good.columns)
    once = len(asked)
    assert make_tuner().run()
    assert len(asked) == once, "nothing is measured or tried twice"


def test_a_variant_that_took_the_process_down_is_skipped(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    asked = share(monkeypatch, {})
    assert make_tuner().run()
    culprit = asked[3]
    info = first_device()
    kept = tuned.load(info)
    del kept.measured[culprit]
    tuned.save(info, kept)
    tuned.marker(info).write_text(culprit)
    asked.clear()
    assert make_tuner().run()
    assert asked == []
    assert list(tuned.load(info).failed) == [culprit]
    assert any(line.startswith(culprit) and "skipped" in line for line in said)
    assert not tuned.marker(info).exists()


def test_damaged_results_are_said_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    info = first_device()
    path = tuned.path_for(info)
    path.parent.mkdir(parents=True)
    for text in ("{", '{"vector": 3}', '{"tiles": {"gemm outer": [0, 2]}}', '{"tiles": 1}'):
        path.write_text(text)
        with caplog.at_level(logging.WARNING):
            assert tuned.load(info) == Tuned(info.description)
        assert "damaged, defaults are used" in caplog.messages[-1]
        assert "\n" not in caplog.messages[-1]


def test_results_belong_to_a_driver_and_a_set_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels

    one = DeviceInfo("opencl", "a", "gpu", driver="1")
    paths = {tuned.path_for(one), tuned.path_for(DeviceInfo("opencl", "a", "gpu", driver="2"))}
    monkeypatch.setattr(kernels, "digest", lambda: "other")
    paths.add(tuned.path_for(one))
    assert len(paths) == 3


CHILD = """
import json, os, sys
from client.backends.device_info import DeviceInfo
from client.backends.opencl import tuned

info = DeviceInfo("opencl", "a", "gpu")
lost = tuned.left_over(info)
if lost:
    tuned.save(info, tuned.Tuned(failed={lost: "the process ended in it"}))
    print(lost, "is skipped", flush=True)
for variant in ("bad", "good"):
    if variant not in tuned.load(info).failed:
        print("trying", variant, flush=True)
        with tuned.trying(info, variant):
            if variant == "bad":
                os.abort()
sys.exit(json.loads(sys.argv[1])["batch"])
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "brittle_tuner.py").write_text(CHILD)
    root = Path(__file__).parent.parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    return "brittle_tuner"


@pytest.mark.slow
def test_a_crash_takes_only_the_child(child: str) -> None:
    lines: list[str] = []
    tuning.tune(DeviceInfo("opencl", "a", "gpu"), [], 0, FOREVER, lines.append, child)
    assert lines == ["trying bad", "bad is skipped", "trying good"]


@pytest.mark.slow
def test_a_child_that_cannot_tune_is_an_error(child: str) -> None:
    with pytest.raises(DeviceError, match="exit code 3"):
        tuning.tune(DeviceInfo("opencl", "a", "gpu"), [], 3, FOREVER, lambda line: None, child)


@pytest.mark.slow
def test_a_budget_that_is_spent_before_the_first_variant_measures_it() -> None:
    """Or small budgets, one after the other, would never end on a slow device."""
    lines: list[str] = []
    for times in (1, 2):
        get("opencl").tune(first_device(), ["mlp"], 4, 0.0, lines.append)
        assert lines[-1] == "the budget is spent; tuning can go on later"
        kept = json.loads(tuned.path_for(first_device()).read_text())
        assert len(kept["measured"]) + len(kept["failed"]) == times
