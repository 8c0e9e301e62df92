"""`pocketfed plan`: by a profile from a file, by what is kept, by measuring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from client.model import load_model
from client.placement.profile import DeviceProfile
from server import cli, plan, plan_measure
from tests.fakes import Fake, register
from tests.json_doc import assert_documented
from tests.profiles import processor, profile

NUMPY, GPU = "numpy|p|v|cpu|d", "opencl|p|v|gpu|d"
BOTH = profile(
    processor(NUMPY, power_w=4.0), processor(GPU, "gpu", launch_s=1e-5, memory_nbytes=2**30)
)


def write(found: DeviceProfile, folder: Path) -> str:
    path = folder / "profile.yaml"
    path.write_text(found.to_yaml())
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    assert cli.run(["plan", *arguments, "--json"]) == 0
    text, _, line = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return text, json.loads(line)


def test_a_plan_for_a_profile_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, value = run(capsys, "lenet5", "--profile", write(BOTH, tmp_path), "--batch", "16")
    assert (value["model"], value["batch"], value["exact"]) == ("lenet5", 16, True)
    assert [p["device"] for p in value["processors"]] == [NUMPY, GPU]
    assert [b["block"] for b in value["blocks"]] == list(load_model(Path("lenet5")).block_names)
    first, last = value["blocks"][0], value["blocks"][-1]
    # forward, and the weights' gradients: 6 channels of 28x28, 25 taps
    assert first["flops"] == 2 * 2 * 16 * 6 * 28 * 28 * 25
    assert [e["forward_nbytes"] for e in first["edges"]] == [4 * 16 * 6 * 28 * 28] * 2
    assert last["edges"] == []
    assert set(first["seconds"]) == {NUMPY, GPU}
    kinds = {a["kind"] for a in value["alternatives"]}
    assert kinds == {"whole", "cut", "split"}
    steps_s = [a["predicted_s"] for a in value["alternatives"]]
    assert steps_s == sorted(steps_s)
    assert value["alternatives"][0]["layout"] == value["chosen"]
    assert all(a["measured_s"] is None and a["error"] is None for a in value["alternatives"])
    # for a person: every block, every alternative, one sentence
    assert all(b["block"] in text for b in value["blocks"])
    assert all(a["layout"] in text for a in value["alternatives"])
    assert text.endswith(value["sentence"])
    assert "trains fastest on" in value["sentence"]


def test_why_a_batch_is_not_split_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, value = run(capsys, "resnet8", "--profile", write(BOTH, tmp_path), "--explain")
    [refused] = value["refused"]
    assert refused["why"] == "batch statistics"
    assert f"not both at once: {refused['layer']} needs the statistics" in text
    assert "passing" in text
    value["failed"] = [{"layout": "a", "message": "b"}]  # nothing fails without --measure
    assert_documented("plan", value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lenet6",), "did you mean 'lenet5'?"),
        (("lenet5", "--profile", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("lenet5", "--batch", "0"), "--batch"),
    ],
)
def test_errors_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_network_that_fits_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = profile(*(processor(key, memory_nbytes=1000) for key in (NUMPY, GPU)))
    assert cli.run(["plan", "mlp", "--profile", write(full, tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "model 'mlp' can be placed nowhere: numpy: cpu would need" in line
    assert "cut: none fits" in line


def test_measuring_needs_the_profiles_processors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["plan", "mlp", "--profile", write(BOTH, tmp_path), "--measure"]) == 2
    assert "numpy cpu, which the profile has, is not here" in capsys.readouterr().err


class Ticks:
    """The fakes' clock, which goes on a little whenever it is looked at; nobody sleeps."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def perf_counter(self) -> float:
        self._clock.now_s += 1e-4
        return float(self._clock.now_s)

    def sleep(self, seconds: float) -> None:
        """Not at all."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[Fake, Fake]:
    """Two processors, of which a whole network takes 2 s a step on the slow one, 1 s on the
    other; parts of it take no time on either, beside the clock's ticks."""
    fast, slow = Fake("fast", step_s=1.0), Fake("slow", step_s=2.0)
    clock = register(monkeypatch, fast, slow, numpy=False)
    monkeypatch.setattr(plan_measure, "time", Ticks(clock))
    monkeypatch.setattr(plan_measure, "GROUPS", 1)
    monkeypatch.setattr(plan_measure, "GROUP_S", 0.0)
    return fast, slow


def test_measured_times_stand_beside_the_predicted(
    machine: tuple[Fake, Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [fake.devices()[0].key for fake in machine]
    here = profile(*(processor(key, "gpu") for key in keys))
    text, value = run(capsys, "mlp", "--profile", write(here, tmp_path), "--measure")
    found = {a["layout"]: a for a in value["alternatives"]}
    assert found["fast"]["measured_s"] == pytest.approx(1, rel=1e-3)
    assert found["slow"]["measured_s"] == pytest.approx(2, rel=1e-3)
    for name in ("fast", "slow"):
        assert found[name]["corrected_s"] == pytest.approx(found[name]["measured_s"], rel=1e-3)
        assert abs(found[name]["error"]) < 1e-3
    # cuts take next to nothing by this clock, and what was measured decides
    assert found[value["chosen"]]["kind"] != "whole"
    assert found[value["chosen"]]["measured_s"] < 0.1
    assert "measured ms" in text
    assert "a step, measured" in value["sentence"]
    assert all(fake.calls["compile"] == fake.calls["release"] for fake in machine)


def test_what_cannot_run_is_said_and_left_out(
    machine: tuple[Fake, Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine[1].fail_to_compile = True
    keys = [fake.devices()[0].key for fake in machine]
    here = profile(*(processor(key, "gpu") for key in keys))
    text, value = run(capsys, "mlp", "--profile", write(here, tmp_path), "--measure", "--explain")
    assert [a["layout"] for a in value["alternatives"]] == ["fast"]
    assert value["chosen"] == "fast"
    assert [f["layout"] for f in value["failed"]] == ["slow"]
    assert "not slow: slow device: gemm.cl does not build" in text


def test_what_is_kept_of_all_processors_here_is_not_measured_again(
    machine: tuple[Fake, Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    made = profile(*(processor(fake.devices()[0].key, "gpu", threads=1) for fake in machine))
    monkeypatch.setattr(plan.probing, "measure", lambda say: made)
    assert plan.profile_here(said.append) == made
    assert said == ["no profile is kept of all processors here: measuring them, for some seconds"]
    again = plan.profile_here(said.append)
    assert again.processors == made.processors
    assert len(said) == 1
