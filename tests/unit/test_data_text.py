"""Texts and LEAF's JSON: characters to numbers, examples by user, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.config import PartitionConfig
from client.data import Dataset, cut_for, fit_to, load, partition
from client.data.text import ALPHABET, TextCut, load_text
from client.errors import DataError
from client.model import build_model, load_model
from client.model.losses import CrossEntropy


def saved(tmp_path: Path, value: Any, name: str = "all_data.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def users(**data: Any) -> dict[str, Any]:
    return {"users": list(data), "num_samples": [], "user_data": data}


def fitted(model: str, path: Path, stride: int = 1) -> Dataset:
    built, loss = load_model(Path(model)), CrossEntropy()
    return fit_to(load(str(path), None, cut_for(built, loss, stride)), built, loss)


def test_the_alphabet_is_leafs() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert (ALPHABET[0], ALPHABET[1], ALPHABET[-1]) == ("\n", " ", "}")


def test_a_text_gives_each_run_and_the_character_after_it(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_bytes(b"To be,\r\nor not")
    text = "To be,\nor not"
    found = load_text(path, TextCut(4, stride=3))
    assert (found.x.dtype, found.y.dtype) == (np.uint8, np.int32)
    rows = ["".join(ALPHABET[i] for i in row) for row in found.x]
    assert rows == [text[i : i + 4] for i in (0, 3, 6)]
    assert [ALPHABET[i] for i in found.y] == [text[i] for i in (4, 7, 10)]
    assert len(load_text(path, TextCut(4))) == len(text) - 4


def test_a_text_is_cut_as_the_model_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text("All the world's a stage. " * 8)
    dataset = fitted("char_lstm", path, stride=80)
    assert dataset.x.shape == (2, 80)
    config = PartitionConfig("contiguous", nodes=2)
    parts = partition(dataset.y, dataset.columns, config, seed=0)
    assert [list(index) for _, index in parts] == [[0], [1]]


def test_a_text_has_a_label_for_each_step_where_the_loss_has_one(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text("To be, or not")
    layers = [{"type": "embedding", "embedding_dim": 2}, {"type": "linear", "out_features": 80}]
    spec = {"shape": [4], "vocabulary": 80}
    model = build_model({"name": "m", "input": spec, "layers": [*layers, "transpose"]}, "m")
    loss = CrossEntropy()
    found = fit_to(load(str(path), None, cut_for(model, loss, 4)), model, loss)
    assert ["".join(ALPHABET[i] for i in row) for row in found.y] == ["o be", ", or", " not"]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"short", ["found 5 characters", "more than the 80"]),
        (b"x" * 90 + b"\ncaf\xc3\xa9", ["'é' in line 2, column 4", "1 of 95", "replace"]),
        (b"x" * 90 + b"\xff", ["UTF-8", "byte 90"]),
        ("\U0001f600".encode() + b"x" * 90, ["line 1, column 1"]),
    ],
)
def test_what_is_said_of_an_unfit_text(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "play.txt"
    path.write_bytes(content)
    with pytest.raises(DataError) as e:
        load(str(path))
    message = str(e.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_leafs_shakespeare_by_user(tmp_path: Path) -> None:
    line = "x" * 80
    value = users(HAMLET={"x": [line, "y" * 80], "y": ["a", " "]}, YORICK={"x": [line], "y": ["b"]})
    dataset = fitted("char_lstm", saved(tmp_path, value))
    assert dataset.x.dtype == np.uint8
    assert [ALPHABET[i] for i in dataset.x[:, 0]] == ["x", "y", "x"]
    assert [ALPHABET[i] for i in dataset.y] == ["a", " ", "b"]
    config = PartitionConfig("column", column="user")
    parts = partition(dataset.y, dataset.columns, config, seed=0)
    assert [(name, sorted(index)) for name, index in parts] == [
        ("user-HAMLET", [0, 1]), ("user-YORICK", [2])
    ]  # fmt: skip


def test_leafs_femnist_from_a_folder_of_files(tmp_path: Path) -> None:
    for i in range(2):
        value = users(**{f"f{i}": {"x": [[i / 2] * 784] * (i + 1), "y": [7] * (i + 1)}})
        saved(tmp_path, value, f"all_data_{i}.json")
    dataset = fitted("femnist_cnn", tmp_path)
    assert dataset.x.shape == (3, 1, 28, 28)
    np.testing.assert_array_equal(dataset.x[:, 0, 0, 0], [0, 0.5, 0.5])
    assert list(dataset.columns["user"]) == ["f0", "f1", "f1"]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([], ["user_data"]),
        ({"users": []}, ["user_data"]),
        (users(a={"x": []}), ["user_data.a", "x and y"]),
        (users(a={"x": ["ab"], "y": []}), ["user_data.a", "as many"]),
        (users(a={"x": ["ab"], "y": ["cd"]}), ["user_data.a.y", "one character"]),
        (users(a={"x": ["ab", "c"], "y": ["d", "e"]}), ["user_data.a.x", "as many characters"]),
        (users(a={"x": ["aé"], "y": ["d"]}), ["user_data.a.x[0]", "'é'"]),
        (users(a={"x": [[1, 2], [3]], "y": [0, 1]}), ["user_data.a", "as many numbers"]),
        (users(a={"x": [[1, 2]], "y": [0.5]}), ["user_data.a", "class numbers", "0.5"]),
        (users(a={"x": [[1, 2]], "y": [0]}, b={"x": [[1]], "y": [0]}), ["user_data.b", "1 values"]),
        (users(a={"x": [[1, None]], "y": [0]}), ["not a number"]),
    ],
)
def test_what_is_said_of_an_unfit_file(tmp_path: Path, value: Any, parts: list[str]) -> None:
    path = saved(tmp_path, value)
    with pytest.raises(DataError) as e:
        load(str(path))
    message = str(e.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_what_is_no_json_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "all_data.json"
    for content in (b"{", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"all_data\.json: not JSON .*fetch it again"):
            load(str(path))
