"""Who holds which examples: every example in exactly one place, equal for equal seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client.data.dataset import Dataset
from client.data.shares import Shares
from client.errors import DataError
from tests import fakes

N = 60


def shares(folder: Path, seed: int = 3, **data: object) -> Shares:
    experiment = fakes.experiment(folder, N, data=data, seed=seed)
    return Shares(experiment, fakes.model(), folder)


def rows(*parts: np.ndarray) -> list[bytes]:
    return sorted(row.tobytes() for part in parts for row in part)


def test_center_nodes_and_what_nodes_keep_apart_share_the_data_set(tmp_path: Path) -> None:
    s = shares(tmp_path, holdout=12, node_holdout=0.25, partition={"nodes": 3})
    assert s.names == ["node-0", "node-1", "node-2"]
    nodes = [s.of(name) for name in s.names]
    assert s.held_out is not None
    assert len(s.held_out) == 12
    assert [len(n.train) for n in nodes] == [12, 12, 12]
    assert [len(n.held_out or ()) for n in nodes] == [4, 4, 4]
    kept = [n.held_out.x for n in nodes if n.held_out is not None]
    assert rows(s.held_out.x, *(n.train.x for n in nodes), *kept) == rows(fakes.examples(N)[0])


def test_nothing_is_held_out_unless_asked(tmp_path: Path) -> None:
    s = shares(tmp_path)
    assert s.held_out is None
    assert s.of("node-0").held_out is None
    assert sum(len(s.of(name).train) for name in s.names) == N


def test_the_digest_knows_every_value_type_shape_and_column() -> None:
    def digest(x: np.ndarray, y: list[int], **columns: list[str]) -> str:
        found = {name: np.array(column) for name, column in columns.items()}
        return Dataset(x, np.array(y, np.int32), "a file", found).sha256()

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    same = digest(x, [0, 1, 2], who=["a", "b", "c"])
    assert digest(x[:, ::-1][:, ::-1], [0, 1, 2], who=["a", "b", "c"]) == same
    others = [
        digest(x.view(np.uint8), [0, 1, 2], who=["a", "b", "c"]),
        digest(x[:, :, None], [0, 1, 2], who=["a", "b", "c"]),
        digest(x + np.eye(3, 2, dtype=np.float32), [0, 1, 2], who=["a", "b", "c"]),
        digest(x, [0, 2, 1], who=["a", "b", "c"]),
        digest(x, [0, 1, 2], who=["a", "b", "d"]),
        digest(x, [0, 1, 2], by=["a", "b", "c"]),
        digest(x, [0, 1, 2]),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_shares_are_pure_in_the_seed(tmp_path: Path) -> None:
    settings = {"holdout": 12, "node_holdout": 0.25}

    def held(seed: int) -> list[np.ndarray]:
        s = shares(tmp_path, seed, **settings)
        node = s.of("node-1")
        assert s.held_out is not None
        assert node.held_out is not None
        return [s.held_out.x, node.train.x, node.held_out.x]

    for a, b in zip(held(3), held(3), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(not np.array_equal(a, b) for a, b in zip(held(3), held(4), strict=True))


def test_nodes_keep_other_examples_apart_though_their_data_are_equal(tmp_path: Path) -> None:
    s = shares(tmp_path, node_holdout=0.5)
    parts = []
    for name in ("a", "b"):
        node = s.of_file(name, fakes.write_examples(tmp_path / "data.npz", 30))
        assert node.name == name
        assert node.held_out is not None
        parts.append(node.held_out.x)
    assert not np.array_equal(*parts)


def test_the_data_set_is_read_once(tmp_path: Path) -> None:
    s = shares(tmp_path, holdout=12)
    first = s.of("node-0").train.x
    (tmp_path / "data.npz").unlink()
    assert s.held_out is not None
    np.testing.assert_array_equal(s.of("node-0").train.x, first)


def test_an_unknown_node_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no node 'node-7' .*; nodes: node-0, node-1"):
        shares(tmp_path).of("node-7")


def test_data_of_another_shape_is_refused(tmp_path: Path) -> None:
    s = shares(tmp_path)
    path = tmp_path / "wide.npz"
    np.savez(path, x=np.zeros((6, 1, 5, 5), np.uint8), y=np.zeros(6, np.int64))
    with pytest.raises(DataError, match=r"wide\.npz: x: examples have shape \(1, 5, 5\)"):
        s.of_file("node", path)


def test_more_classes_than_the_model_has_are_refused(tmp_path: Path) -> None:
    s = shares(tmp_path)
    path = tmp_path / "many.npz"
    np.savez(path, x=np.zeros((6, 1, 4, 4), np.uint8), y=np.arange(6))
    with pytest.raises(DataError, match=r"many\.npz: y: class 3 at index 3"):
        s.of_file("node", path)
