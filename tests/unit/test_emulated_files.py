"""Which emulated devices there are: the files that describe them, and what is wrong with one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from client import backends, children
from client.backends.emulated.spec import load
from client.errors import ConfigError, DeviceError
from client.fields import shipped_names

FILE = """
name: toy
compute_factor: 2
memory_nbytes: 1_000_000
link:
  upload: {latency_s: 1e-5, bytes_per_s: 1e9}
  download: {latency_s: 1e-5, bytes_per_s: 1e9}
"""


def test_without_the_variable_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POCKETFED_EMULATE", raising=False)
    assert "emulated" not in backends.at_hand()
    with pytest.raises(DeviceError, match=r"only where POCKETFED_EMULATE .*: set POCKET"):
        backends.get("emulated").devices()


def test_devices_are_those_of_the_files_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(FILE)
    monkeypatch.setenv("POCKETFED_EMULATE", f"{file}:phone:{file}")
    assert "emulated" in backends.at_hand()
    backend = backends.get("emulated")
    infos = backend.devices()
    assert [info.name for info in infos] == ["toy", "emulated phone GPU", "toy #2"]
    toy = infos[0]
    assert (toy.backend, toy.kind, toy.unified_memory) == ("emulated", "gpu", False)
    assert (toy.global_mem_nbytes, toy.max_alloc_nbytes) == (1_000_000, 1_000_000)
    assert "emulated device" in toy.remarks[0]
    opened = backend.open(infos[2])
    assert opened.info == infos[2]
    opened.close()
    file.write_text(FILE.replace("compute_factor: 2", "compute_factor: 4"))
    assert backend.devices()[0].key != toy.key, "what was measured of the old one is not of it"
    with pytest.raises(DeviceError, match=r"toy: .*no longer there"):
        backend.open(toy)


def test_a_child_finds_the_same_files_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "toy.yaml"
    for given, passed in {"toy": f"{file}", "phone:toy.yaml": f"phone:{file}"}.items():
        monkeypatch.setenv("POCKETFED_EMULATE", given)
        assert children.environment()["POCKETFED_EMULATE"] == passed
    monkeypatch.delenv("POCKETFED_EMULATE")
    assert "POCKETFED_EMULATE" not in children.environment()


@pytest.mark.parametrize("name", shipped_names("emulated"))
def test_shipped_ones_can_be_opened(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("POCKETFED_EMULATE", name)
    emulation = load(Path(str(files("configs")), "emulated", f"{name}.yaml"))
    try:
        backends.get(emulation.inner.backend).devices()
    except DeviceError as e:
        pytest.skip(f"no inner device: {e}")
    (info,) = backends.get("emulated").devices()
    backends.get("emulated").open(info).close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compute_facto: 2", r"toy\.yaml: compute_facto: unknown key.*'compute_factor'"),
        ("heat: {after_busy_s: 1}", r"toy\.yaml: heat: the key 'factor' is missing"),
        ("heat: {after_busy_s: 1, factor: 2}", r"heat: needs either cools_idle_s or cools_s"),
        ("heat: {after_busy_s: 1, factor: 0.5, cools_s: 1}", r"heat\.factor: found 0\.5, must be"),
        ("inner: {cores: 1}", r"toy\.yaml: inner\.cores: found backend 'numpy', only opencl"),
        ("inner: {backend: emulated}", r"inner\.backend: found 'emulated', allowed: numpy"),
        ("inner: {backend: numpy, device: Z80}", r"no inner device .*'Z80' in its name; here: "),
        ("stall_after: -1", r"toy\.yaml: stall_after: found -1, must be at least 0"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(f"{FILE}{line}\n")
    monkeypatch.setenv("POCKETFED_EMULATE", str(file))
    with pytest.raises((ConfigError, DeviceError), match=said):
        backends.get("emulated").devices()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compute_factor: 2", "compute_factor: 0.5", "compute_factor: found 0.5, must be at least"),
        ("bytes_per_s: 1e9", "bytes_per_s: 0", r"link\.upload\.bytes_per_s: found 0\.0, must be"),
        ("latency_s: 1e-5", "latency_s: -1", r"link\.upload\.latency_s: found -1\.0, must be"),
        ("name: toy", "name: ''", "name: found nothing"),
        ("1_000_000", "0", "memory_nbytes: found 0, must be above 0"),
    ],
)
def test_values_that_no_device_has_are_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        load(file)
