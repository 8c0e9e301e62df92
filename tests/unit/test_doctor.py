"""The doctor: what is wrong is found, and each finding has its remedy."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from client import backends
from client.backends.device_info import DeviceInfo
from client.model import Model
from client.model.graph import Float32Array
from server import console, doctor
from server.doctor import Finding
from tests import fakes
from tests.fakes import Fake


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def examine(tmp_path: Path) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in doctor.examine(tmp_path / "runs"):
        found.setdefault(finding.check.strip(), []).append(finding)
    return found


def zeros(model: Model, grads: Float32Array, count: int) -> None:
    grads[...] = 0


def test_a_sound_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    fakes.register(monkeypatch, Fake("alpha"))
    found = doctor.examine(tmp_path / "runs")
    assert {f.level for f in found} == {"ok"}
    assert {f.remedy for f in found} == {""}
    by_check = {f.check.strip(): f.found for f in found}
    assert by_check["device alpha"] == "alpha device, driver 1.0"
    assert by_check["parity"] == "lenet5: every gradient agrees with numpy"
    assert by_check["cache folder"] == str(cache)
    assert by_check["numpy"] == importlib.metadata.version("numpy")
    assert doctor.as_json(found)["healthy"] is True
    assert not (cache / "parity").exists()  # it looks, and leaves no pass behind


def test_a_device_that_computes_wrong_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha", spoil=zeros))
    found = examine(tmp_path)
    [parity] = found["parity"]
    assert parity.level == "wrong"
    assert "gradient of conv1.weight" in parity.found
    assert parity.remedy == "update the driver; until then it is not used"
    assert doctor.as_json([f for fs in found.values() for f in fs])["healthy"] is False


def test_a_device_that_does_not_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.register(monkeypatch, Fake("alpha", fail_to_compile=True))
    [parity] = examine(tmp_path)["parity"]
    assert (parity.level, "gemm.cl does not build" in parity.found) == ("wrong", True)


def test_a_backend_that_cannot_work_is_odd_since_numpy_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.register(monkeypatch, Fake("alpha", unavailable="no driver: apt install x: or y"))
    found = examine(tmp_path)
    assert found["backend alpha"] == [
        Finding("backend alpha", "odd", "no driver", "apt install x: or y")
    ]
    assert [f.level for f in found["device numpy"]] == ["ok"]


def test_a_backend_without_devices_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.register(monkeypatch, Fake("alpha", empty=True))
    [finding] = examine(tmp_path)["backend alpha"]
    assert (finding.level, finding.found) == ("odd", "no device found")
    assert finding.remedy


def test_remarks_of_a_device_are_told_with_their_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake("alpha")
    fakes.register(monkeypatch, fake)
    info = DeviceInfo("alpha", "a", "cpu", remarks=("generic code: set POCL_CPU", "slow"))
    monkeypatch.setattr(fake, "devices", lambda: [info])
    assert examine(tmp_path)["remark"] == [
        Finding("  remark", "odd", "generic code", "set POCL_CPU"),
        Finding("  remark", "odd", "slow", ""),
    ]


@pytest.mark.parametrize(
    ("package", "version", "level", "remedy"),
    [
        ("flwr", None, "wrong", "pip install 'pocketfed'"),
        ("flwr", "1.43.0", "wrong", "pip install 'flwr>=1.42,<1.43'"),
        ("flwr", "1.42.7", "ok", ""),
        ("mlxtend", None, "odd", "pip install 'pocketfed[data]'"),
        ("rich", "1.0", "ok", ""),
    ],
)
def test_packages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    version: str | None,
    level: str,
    remedy: str,
) -> None:
    real = importlib.metadata.version

    def versions(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", versions)
    fakes.register(monkeypatch)
    expected = Finding(package, level, version or "not installed", remedy)  # type: ignore[arg-type]
    assert examine(tmp_path)[package] == [expected]


def test_folders_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.register(monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "runs").write_text("")
    found = examine(tmp_path)
    for check, remedy in (("cache folder", "POCKETFED_CACHE"), ("runs folder", "--out")):
        [finding] = found[check]
        assert finding.level == "wrong"
        assert remedy in finding.remedy


def test_the_table_shows_each_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("rich", "odd", "not installed", "pip install 'pocketfed[server]'")
    console.console().print(doctor.render([finding]))
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split() == [
        *("rich", "odd", "not", "installed", "pip", "install"),
        "'pocketfed[server]'",
    ]


def test_emulated_devices_are_listed_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "names", lambda: ("emulated", "numpy"))
    monkeypatch.delenv("POCKETFED_EMULATE", raising=False)
    assert "device emulated" not in examine(tmp_path)
    monkeypatch.setenv("POCKETFED_EMULATE", "link_12")
    found = examine(tmp_path)
    assert "emulated GPU, 12 GB/s; emulated on numpy" in found["device emulated"][0].found
    assert found["remark"][0].remedy.startswith("unset POCKETFED_EMULATE")
    assert found["parity"][0].level == "ok"


def test_a_wrong_description_of_an_emulated_device_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.yaml").write_text("nam: toy\n")
    monkeypatch.setattr(backends, "names", lambda: ("emulated", "numpy"))
    monkeypatch.setenv("POCKETFED_EMULATE", str(tmp_path / "toy.yaml"))
    (wrong,) = examine(tmp_path)["backend emulated"]
    assert wrong.level == "wrong"
    assert "toy.yaml: nam: unknown key" in wrong.found
    assert "POCKETFED_EMULATE" in wrong.remedy
