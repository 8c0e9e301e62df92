"""The movement bench: both ways train the same network, and one of them moves it all the time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from client.backends.emulated import spec
from client.fields import find_config
from client.model import load_model
from client.placement.layout import Layout
from server.bench import measure, movement
from server.bench.movement import EveryBlock
from server.bench.placed_steps import Loaded, PlacedSteps
from server.bench.workloads import random_examples
from server.cli import run
from tests import fakes
from tests.json_doc import assert_documented


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(fakes.MODEL))
    return str(path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MIN_GROUP_S", 1e-4)
    monkeypatch.setattr(measure, "PAUSE_S", 0.0)


def test_both_ways_train_alike_and_one_moves_every_tensor(small: str) -> None:
    device = fakes.numpy_device()
    model, key = load_model(Path(small)), device.info.key
    loaded = Loaded.on({key: device}, model, random_examples(model, 4), 4)
    every = EveryBlock(key, loaded)
    whole = PlacedSteps(Layout.whole(key, len(model.block_names)), loaded)
    assert len(every.placed.programs) == len(model.block_names) == 4
    start = whole.placed.download()
    for steps in (every, whole):
        steps.run(5)
    end = whole.placed.download()
    np.testing.assert_allclose(every.placed.download(), end, rtol=1e-5, atol=1e-7)
    assert np.abs(end - start).max() > 1e-4
    every.release()
    whole.release()


@pytest.mark.usefixtures("quick")
def test_rows_have_the_documented_keys(
    small: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("POCKETFED_EMULATE", "none")
    fakes.register(monkeypatch, fakes.Fake("gpu"), fakes.Fake("absent", unavailable="no driver"))
    assert run(["bench", "movement", "--model", small, "--groups", "2", "--json"]) == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert_documented("bench movement", value)
    (row,) = value["rows"]
    assert (row["backend"], row["every_block"]["programs"]) == ("gpu", 4)
    assert row["pocketfed"]["programs"] == 1
    for way in ("every_block", "pocketfed"):
        assert 0 <= row[way]["movement_share"] < 1
        assert row[way]["step_ms"] > 0
    assert "absent is left out: no driver" in caplog.text
    assert "every block" in out


def test_without_a_device_but_numpy_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POCKETFED_EMULATE", "none")
    fakes.register(monkeypatch)
    assert run(["bench", "movement"]) == 1
    assert "no device but numpy's is here: install an OpenCL driver" in capsys.readouterr().err


def test_the_shipped_phone_link_can_be_read() -> None:
    found = spec.load(find_config(movement.EMULATED, "emulated", Path(), "test"))
    assert found.link.upload.bytes_per_s <= 1e9
