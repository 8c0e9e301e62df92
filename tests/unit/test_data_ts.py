"""Time series in .ts files, and the sets of them inside aeon."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from client.config import DataConfig, PartitionConfig, load_experiment
from client.data import fit_to, load, packaged, partition, split_holdout
from client.data.ts import load_ts
from client.errors import DataError, MissingExtraError
from client.fields import find_config, parse, read_yaml
from client.model import build_model

HEAD = "#A comment: not data\n@problemName Small\n@classLabel true walk rest\n@data\n"

with_aeon = pytest.mark.skipif(
    find_spec("aeon") is None, reason="files inside aeon: pip install --no-deps aeon"
)


def write(folder: Path, body: str, head: str = HEAD, name: str = "s_TRAIN.ts") -> Path:
    path = folder / name
    path.write_text(head + body)
    return path


def test_series_of_several_files_end_with_zeros(tmp_path: Path) -> None:
    train = write(tmp_path, "1,2,3:-4,5,6.5:rest\n\n7,8:9,1e1:walk\n")
    test = write(tmp_path, "1:2:walk", name="s_TEST.ts")
    x, y, names = load_ts([train, test])
    assert names == ("walk", "rest")
    assert y.tolist() == [1, 0, 0]
    assert y.dtype == np.int32
    assert x.dtype == np.float32
    assert x.tolist() == [
        [[1, 2, 3], [-4, 5, 6.5]],
        [[7, 8, 0], [9, 10, 0]],
        [[1, 0, 0], [2, 0, 0]],
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1,2:3:rest", r"line 5: channels of \[1, 2\] steps"),
        ("1,?:3,4:rest", r"line 5: could not convert string to float: '\?'"),
        ("1:2:rest\n1:2:run", "line 6: class 'run' is not among walk, rest"),
        ("1,2,3", "line 5: no class after the last colon"),
        ("1,2:rest\n1:2:rest", r"series of \[1, 2\] channels"),
        ("1:2:re", "line 5: class 're'"),
        ("", "no examples after a line '@data'"),
    ],
)
def test_what_is_damaged_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as e:
        load_ts([write(tmp_path, body)])
    assert "\n" not in str(e.value)
    assert "s_TRAIN.ts" in str(e.value)


def test_files_of_two_sets_are_refused(tmp_path: Path) -> None:
    other = write(tmp_path, "1:a", "@classLabel true a b\n@data\n", "other.ts")
    with pytest.raises(DataError, match=r"other\.ts: classes a, b, but s_TRAIN\.ts has walk, rest"):
        load_ts([write(tmp_path, "1:rest"), other])


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.ts"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"x\.ts: not a text file"):
        load_ts([path])


def test_without_aeon_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'basic_motions' needs .* aeon.*\[timeseries\]"):
        load("basic_motions")


def test_an_aeon_without_its_files_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "_aeon_files", lambda name: [tmp_path / f"{name}_TRAIN.ts"])
    with pytest.raises(DataError, match=r"JapaneseVowels_TRAIN\.ts: cannot be read"):
        load("japanese_vowels")


@pytest.mark.parametrize("name", ["BasicMotions", "basic_motion", "basicmotions"])
def test_names_nearby_are_suggested(name: str) -> None:
    with pytest.raises(DataError, match="did you mean 'basic_motions'"):
        load(name)


@with_aeon
def test_basic_motions() -> None:
    motions = load("basic_motions")
    assert motions.x.shape == (80, 6, 100)
    assert motions.class_counts() == dict.fromkeys(range(4), 20)
    assert motions.x[0, 0, :3] == pytest.approx([0.079106, 0.079106, -0.903497])
    # at rest (class 0) the accelerometer moves least
    spread = [motions.x[motions.y == c].std() for c in range(4)]
    assert np.argmin(spread) == 0
    assert "aeon" not in sys.modules  # only its files are read


@with_aeon
@pytest.mark.parametrize("name", ["basic_motions_iid", "japanese_vowels_speakers"])
def test_shipped_data_configurations_are_valid_and_load(name: str) -> None:
    path = find_config(name, "data", Path(), "test")
    config = parse(DataConfig, read_yaml(path), str(path))
    found = load(config.source)
    rest, held_out = split_holdout(found, config.holdout, seed=0)
    parts = partition(rest.y, rest.columns, config.partition, seed=0)
    assert sum(len(index) for _, index in parts) + len(held_out) == len(found)
    assert min(len(index) for _, index in parts) >= 15


@with_aeon
def test_the_shipped_experiment_fits_its_data() -> None:
    path = Path(__file__).parents[2] / "configs" / "basic_motions.yaml"
    experiment = load_experiment(path)
    motions = load(experiment.data.source, path.parent)
    model = build_model(experiment.model, str(path))
    assert fit_to(motions, model, experiment.train.recipe.loss).x.shape == motions.x.shape
    factor, shift = model.input.affine(motions.x.dtype)
    x = motions.x * factor[:, None] + shift[:, None]
    assert np.abs(x.mean((0, 2))).max() < 0.01
    assert np.abs(x.std((0, 2)) - 1).max() < 0.01


@with_aeon
def test_japanese_vowels_are_partitioned_by_speaker() -> None:
    vowels = load("japanese_vowels")
    assert vowels.x.shape == (640, 12, 29)
    assert vowels.x[0, 0, :2] == pytest.approx([1.860936, 1.891651])
    assert not vowels.x[0, :, 20:].any()  # its first utterance has 20 frames
    assert vowels.x[0, :, :20].all()
    config = PartitionConfig(kind="column", column="speaker")
    parts = partition(vowels.y, vowels.columns, config, seed=1)
    assert [name for name, _ in parts] == [f"speaker-{n}" for n in range(1, 10)]
    assert sum(len(index) for _, index in parts) == 640
    assert all((vowels.y[index] == i).all() for i, (_, index) in enumerate(parts))
