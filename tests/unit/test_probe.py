"""Timing of exercises on a clock of their own, profiles that are kept, and the command."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from client.backends.exercises import LINK_KINDS, Exercise, Exercises, LinkKind
from client.backends.numpy.device import NumpyDevice
from client.errors import DeviceError
from client.placement import probe, profile
from client.placement.profile import Copy, Gemm, ProcessorProfile
from server.cli import run
from tests import fakes
from tests.json_doc import assert_documented


@dataclass
class Machine(Exercises):
    """Exercises that take stated times, on a clock that only they move."""

    now_s: float = 0.0
    upload_bytes_per_s: float = 1e9
    latency_s: float = 1e-4
    runs: list[int] = field(default_factory=list)
    released: int = 0
    link_kinds: tuple[LinkKind, ...] = LINK_KINDS
    link_used: LinkKind = "pageable"
    most_nbytes: int = 2**20

    def exercise(self, seconds: float, warm_up_s: float = 0.0) -> Exercise:
        first = [warm_up_s]

        def work() -> None:
            self.now_s += seconds + (first.pop() if first else 0.0)

        def release() -> None:
            self.released += 1

        return Exercise(work, release=release)

    def gemm(self, m: int, n: int, k: int) -> Exercise:
        return self.exercise(1e-5 + 2 * m * n * k / 1e11)

    def copy(self, nbytes: int) -> Exercise:
        return self.exercise(2 * nbytes / 1e10)

    def launch(self) -> Exercise:
        return self.exercise(5e-6)

    def upload(self, nbytes: int, kind: LinkKind) -> Exercise:
        return self.exercise(self.latency_s + nbytes / self.upload_bytes_per_s)

    def download(self, nbytes: int, kind: LinkKind) -> Exercise:
        return self.exercise(2 * self.latency_s + nbytes / (self.upload_bytes_per_s / 2))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    timer = partial(probe.Timer, clock=lambda: found.now_s)
    monkeypatch.setattr(probe, "Timer", timer)
    monkeypatch.setattr(NumpyDevice, "exercises", lambda self: found)
    monkeypatch.setattr(probe.time, "sleep", lambda seconds: None)
    return found


@pytest.mark.parametrize("seconds", [1e-7, 1e-3, 5.0])
def test_one_repetition_takes_what_it_takes_without_the_first(
    seconds: float, machine: Machine
) -> None:
    found = probe.Timer().seconds(machine.exercise(seconds, warm_up_s=1.0))
    assert found == pytest.approx(seconds, rel=1e-6)
    assert machine.released == 1


def test_what_is_slow_is_not_repeated_for_ever(machine: Machine) -> None:
    probe.Timer().seconds(machine.exercise(20.0))
    assert machine.now_s == 40.0  # the warm-up and one more


def test_the_shortest_group_counts(machine: Machine) -> None:
    calls = iter([0.02, 0.05, 0.03, 0.02])  # the first warms up

    def work() -> None:
        machine.now_s += next(calls)

    assert probe.Timer().seconds(Exercise(work)) == pytest.approx(0.02)


def test_an_exercise_that_fails_is_released(machine: Machine) -> None:
    def fail() -> None:
        raise DeviceError("lost")

    exercise = replace(machine.exercise(1.0), enqueue=fail)
    with pytest.raises(DeviceError, match="lost"):
        probe.Timer().seconds(exercise)
    assert machine.released == 1


def test_a_full_probe_finds_latency_and_bandwidth_apart_each_way(machine: Machine) -> None:
    found = probe.measure_fully(fakes.numpy_device())
    assert found.launch_s == pytest.approx(5e-6)
    assert set(found.links) == set(LINK_KINDS)
    assert found.link.upload_latency_s == pytest.approx(1e-4, rel=1e-2)
    assert found.link.upload_bytes_per_s == pytest.approx(1e9, rel=1e-2)
    assert found.link.download_latency_s == pytest.approx(2e-4, rel=1e-2)
    assert found.link.download_bytes_per_s == pytest.approx(5e8, rel=1e-2)
    fitting = probe.GEMMS[:2]  # the largest needs more than the largest transfer
    assert [(g.m, g.n, g.k) for g in found.gemms] == list(fitting)
    speeds = [2 * m * n * k / (1e-5 + 2 * m * n * k / 1e11) for m, n, k in fitting]
    assert [g.flops_per_s for g in found.gemms] == pytest.approx(speeds)
    assert [c.nbytes for c in found.copies] == [2**17, 2**20]  # the others do not fit
    assert found.copies[0].bytes_per_s == pytest.approx(1e10)
    assert found.complete


def test_a_quick_probe_keeps_to_its_budget_and_to_launches_and_the_link_used(
    machine: Machine,
) -> None:
    found = probe.measure_quickly(fakes.numpy_device(), budget_s=0.5)
    assert list(found.links) == ["pageable"]
    assert not found.gemms
    assert not found.complete
    assert machine.now_s < 0.6
    began_s = machine.now_s
    probe.measure_quickly(fakes.numpy_device(), budget_s=0.05)
    assert machine.now_s - began_s < 0.1


def test_a_kept_profile_is_found_for_the_same_device_alone(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    device = fakes.numpy_device()
    assert probe.saved(device.info) is None
    measured = probe.measure_fully(device)
    probe.keep(probe.dated([measured]))
    assert probe.saved(device.info) == measured
    assert probe.profile_of(device) == measured
    other_driver = replace(device.info, driver="another")
    assert probe.saved(other_driver) is None
    fewer_threads = replace(device.info, compute_units=device.info.compute_units + 1)
    assert probe.saved(fewer_threads) is None


def test_a_damaged_kept_profile_is_left_aside_loudly(
    machine: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    device = fakes.numpy_device()
    probe.keep(probe.dated([probe.measure_fully(device)]))
    (kept,) = (tmp_path / "profiles").iterdir()
    kept.write_text("version: 1")
    assert not probe.profile_of(device).complete
    assert f"{kept}: the key 'host' is missing" in caplog.text


def canned() -> ProcessorProfile:
    return replace(
        probe.measure_quickly(fakes.numpy_device(), 0.001),
        gemms=(Gemm(32, 64, 64, 1e9),),
        copies=(Copy(2**20, 1e9),),
        power_w=2.5,
    )


def test_the_command_prints_writes_and_keeps_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    one = canned()
    monkeypatch.setattr(probe, "measure_fully", lambda device: one)
    fakes.register(monkeypatch)
    file = tmp_path / "new" / "p.yaml"
    assert run(["probe", "-o", str(file), "--json"]) == 0
    out = capsys.readouterr().out
    assert "32x64x64 GFLOPS" in out
    assert_documented("probe", json.loads(out.splitlines()[-1]))
    assert profile.load(file).processors == (one,)
    assert probe.saved(fakes.numpy_device().info) == one


def test_a_device_that_fails_is_named_and_the_others_are_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    one = canned()

    def measure(device: NumpyDevice) -> ProcessorProfile:
        if device.info.backend == "broken":
            raise DeviceError("broken device: lost")
        return one

    monkeypatch.setattr(probe, "measure_fully", measure)
    fakes.register(monkeypatch, fakes.Fake("broken"), fakes.Fake("absent", unavailable="no driver"))
    assert run(["probe"]) == 0
    assert "left out: broken broken device: lost" in caplog.text
    assert "left out: absent: no driver" in caplog.text


def test_no_device_at_all_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    fakes.register(monkeypatch, fakes.Fake("absent", unavailable="no driver"), numpy=False)
    assert run(["probe"]) == 1
    assert "no device here can be measured: absent: no driver" in capsys.readouterr().err
