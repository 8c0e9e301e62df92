"""Programs on disk: found again, rebuilt where damaged or refused, not needed where unwritable."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.backends.opencl.joined import Joined, Variant, join
from client.backends.recipe import Hyper
from client.errors import DeviceError
from tests.backend.harness import Subject, examples, network
from tests.backend.opencl_devices import first_device, open_device

LOGGER = "client.backends.opencl.program_cache"
MODEL = network([7], {"type": "linear", "out_features": 5}, "relu")


KEEPS = "client.backends.opencl.device.keeps_its_own"


@pytest.fixture(autouse=True)
def driver_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PoCL, like any driver that keeps no programs of its own."""
    first_device()
    monkeypatch.setattr(KEEPS, lambda device: False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty."""
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path))
    return tmp_path / "programs"


def train() -> np.ndarray:
    """Parameters after an epoch on a device opened anew."""
    device = open_device()
    subject = Subject(device, MODEL, 4, *examples(MODEL, 10))
    subject.epoch(Hyper(lr=0.1))
    params = subject.program.download()
    device.close()
    return params


def test_programs_are_kept_and_found(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = train()
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert files
    assert not [path for path in files if path.suffix != ".bin"], "nothing half-written stays"
    np.testing.assert_array_equal(train(), first)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files
    assert not caplog.records


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def no_program(path: Path) -> None:
    junk = b"no program of this driver"
    path.write_bytes(hashlib.blake2b(junk, digest_size=16).digest() + junk)


@pytest.mark.parametrize("damage", [cut_short, empty, flip_a_bit, no_program])
def test_damaged_files_are_built_anew(
    folder: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    first = train()
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    for path in contents:
        damage(path)
    np.testing.assert_array_equal(train(), first)
    assert len(caplog.records) == len(contents)
    assert all("building anew" in record.message for record in caplog.records)
    caplog.clear()
    np.testing.assert_array_equal(train(), first)
    assert not caplog.records, "they were mended"


def test_an_unusable_folder_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("POCKETFED_CACHE", str(tmp_path / "file"))
    train()
    said = [r for r in caplog.records if r.name == LOGGER]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    assert str(tmp_path / "file") in said[0].message


def test_a_driver_that_keeps_programs_is_left_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KEEPS, lambda device: True)
    train()
    assert not folder.exists()


def test_other_options_are_other_programs(folder: Path) -> None:
    device = open_device()
    for width in (1, 4):
        device.programs.get("loss", (("VW", width),))
    device.programs.save()
    assert len(list(folder.iterdir())) == 2
    device.close()


def test_what_does_not_build_is_explained(folder: Path) -> None:
    device = open_device()
    with pytest.raises(DeviceError, match=r"kernels/loss\.cl .*-DVW=3.*") as caught:
        device.programs.get("loss", (("VW", 3),))
    assert "\n" not in str(caught.value)
    assert "error" in str(caught.value).lower(), "the compiler's log is there"
    device.close()


def wanted(width: int) -> list[Variant]:
    """Kernels that share names of functions, types and macros."""
    batch = [("ACROSS", across) for across in (0, 1)]
    moments = [Variant("batchnorm", "batch_moments", (define, ("VW", width))) for define in batch]
    return [
        *moments,
        Variant("batchnorm", "batch_moments", (("ACROSS", 0), ("VW", 2 * width))),
        Variant("reduce", "sum_partials", (("VW", width),)),
    ]


def test_variants_are_one_program(folder: Path) -> None:
    device = open_device()
    device.programs.build(wanted(4))
    device.programs.save()
    assert len(list(folder.iterdir())) == 1
    built = {device.programs.kernel(v).function_name for v in wanted(4)}
    assert len(built) == len(wanted(4)), "each has a name of its own"
    first = device.programs.kernel(wanted(4)[0])
    named = set(first.program.kernel_names.split(";"))
    assert named == built, "and nothing else was built"
    device.programs.build(wanted(4))
    device.programs.save()
    assert len(list(folder.iterdir())) == 1, "they are known"
    device.close()


def test_a_variant_that_does_not_build_is_named(folder: Path) -> None:
    device = open_device()
    bad = Variant("loss", "cross_entropy", (("VW", 3),))
    with pytest.raises(DeviceError, match=r"kernels/loss\.cl .*-DVW=3.*"):
        device.programs.build([*wanted(4), bad])
    device.close()


def test_variants_that_fail_together_are_built_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = train()

    def broken(variants: Iterable[Variant]) -> Joined:
        whole = join(variants)
        return replace(whole, text=f"{whole.text}\n#error this compiler does not like it\n")

    monkeypatch.setattr("client.backends.opencl.program_cache.join", broken)
    np.testing.assert_array_equal(train(), first)
    (said,) = caplog.records
    assert "one by one" in said.message
    assert "does not like it" in said.message
