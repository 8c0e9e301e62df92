"""Checkpoints and model files: equal after a round trip, believed only if whole."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client.errors import MissingExtraError, StoreError
from server import files
from server.engine.checkpoint import (
    Checkpoints,
    State,
    _decode,
    _Encoder,
    restore_strategy,
    strategy_state,
)
from server.model_file import load_arrays, load_model_file, save_model
from server.store import RoundInfo

ARRAYS = {
    "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.bias": np.array([np.pi], np.float32),
}
MODEL = {"name": "tiny", "layers": ["relu"]}


def state(number: int = 3, **more: Any) -> State:
    return State(
        **{"round": number, "seed": 9, "arrays": ARRAYS, "strategy": {}, "nodes": {}} | more
    )


def info(number: int, name: str, checksum: str) -> RoundInfo:
    return RoundInfo(number, None, None, None, None, None, 1.0, 2, 0.1, name, checksum)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, Array):
        assert_equal(found.numpy(), expected.numpy())
    elif hasattr(expected, "items"):
        assert list(found) == list(expected)
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            assert_equal(f, e)
    else:
        assert found == expected


def round_trip(folder: Path, value: State) -> State:
    checkpoints = Checkpoints(folder)
    saved = checkpoints.save(value)
    return checkpoints.load(saved.name, saved.sha256)


def test_everything_comes_back_as_it_was(tmp_path: Path) -> None:
    strategy = {
        "none": None,
        "flag": True,
        "count": 2**60,
        "mu": 0.1,
        "numpy mu": np.float64(0.1),
        "numpy small": np.float32(0.1),
        "name": "x",
        "raw": b"\x00\xff",
        "momentum": [np.ones((2, 2), np.float64), np.zeros((), np.float32)],
        "pair": (1, [2, np.arange(3)]),
        "by name": {"w": np.array([[-0.0]], np.float16), "empty": np.zeros((0, 3), np.int32)},
        "arrays": ArrayRecord({"b": Array(np.ones(2, np.float32)), "a": Array(np.ones(1))}),
    }
    nodes = {
        "node-1": RecordDict(
            {
                "state": ArrayRecord({"m": Array(np.arange(3, dtype=np.float32))}),
                "metrics": MetricRecord({"rounds": 3, "losses": [0.5, 0.25]}),
                "config": ConfigRecord({"raw": b"\x01", "on": True, "names": ["a", "b"]}),
            }
        )
    }
    value = state(strategy=strategy, nodes=nodes)
    found = round_trip(tmp_path, value)
    assert (found.round, found.seed) == (3, 9)
    assert_equal(found.arrays, value.arrays)
    assert_equal(found.strategy, value.strategy)
    assert_equal(found.nodes, value.nodes)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int32, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=0, min_side=0),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@given(_values)
def test_any_nested_value_comes_back(value: Any) -> None:
    encoder = _Encoder()
    encoded = encoder.value(value, "x")
    assert_equal(_decode(encoded, encoder.tensors), value)


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    nodes = {n: RecordDict({"c": ConfigRecord({"k": n})}) for n in "abcdef"}
    first = Checkpoints(tmp_path / "1").save(state(nodes=nodes))
    assert Checkpoints(tmp_path / "2").save(state(nodes=nodes)) == first


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    for value, kind in ((object(), "object"), ({1, 2}, "set"), (np.array([None]), "ndarray")):
        with pytest.raises(StoreError, match=rf"strategy\.history\[0\]: a {kind} cannot be kept"):
            Checkpoints(tmp_path).save(state(strategy={"history": [value]}))
    with pytest.raises(StoreError, match="a dict cannot be kept"):
        Checkpoints(tmp_path).save(state(strategy={"by number": {1: 2}}))


def test_a_strategy_takes_its_state_back(tmp_path: Path) -> None:
    strategy = FedAvgM(server_momentum=0.9)
    strategy.momentum_vector = [np.ones(3, np.float32)]
    strategy.current_arrays = ArrayRecord({"w": Array(np.full(3, 2, np.float32))})
    kept = round_trip(tmp_path, state(strategy=strategy_state(strategy)))
    fresh = FedAvgM(server_momentum=0.9)
    restore_strategy(fresh, kept.strategy)
    assert_equal(strategy_state(fresh), strategy_state(strategy))
    assert callable(fresh.train_metrics_aggr_fn)
    with pytest.raises(StoreError, match="does not fit FedAdam"):
        restore_strategy(FedAdam(), kept.strategy)
    with pytest.raises(StoreError, match="does not fit FedAvg"):
        restore_strategy(FedAvg(), kept.strategy)


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_damaged_last_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    rounds = []
    for number in (1, 2, 3):
        saved = checkpoints.save(state(number))
        rounds.append(info(number, saved.name, saved.sha256))
        checkpoints.prune(rounds)
    assert len(list(tmp_path.iterdir())) == 2
    last, complaints = checkpoints.load_last(rounds)
    assert last is not None
    assert (last.round, complaints) == (3, [])
    _damage(tmp_path / rounds[2].checkpoint)
    before, complaints = checkpoints.load_last(rounds)
    assert before is not None
    assert before.round == 2
    assert len(complaints) == 1
    assert "checksum" in complaints[0]
    (tmp_path / rounds[1].checkpoint).unlink()
    with pytest.raises(StoreError, match="no checkpoint of the run can be used") as e:
        checkpoints.load_last(rounds)
    assert "\n" not in str(e.value)


def test_a_run_without_a_whole_round_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).load_last([]) == (None, [])


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved = checkpoints.save(state(1))
    (tmp_path / ".round-00002.safetensors.123.tmp").write_bytes(b"half")
    checkpoints.prune([info(1, saved.name, saved.sha256)])
    assert [p.name for p in tmp_path.iterdir()] == [saved.name]


@contextmanager
def _small_files(nbytes: int) -> Iterator[None]:
    """No file may grow beyond this many bytes: what a full disk does to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_leaves_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved = checkpoints.save(state(1))
    big = {"w": np.zeros(100_000, np.float32)}
    with _small_files(50_000), pytest.raises(StoreError, match="cannot be written") as e:
        checkpoints.save(state(2, arrays=big))
    assert "\n" not in str(e.value)
    assert [p.name for p in tmp_path.iterdir()] == [saved.name]
    assert checkpoints.load(saved.name, saved.sha256).round == 1


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(StoreError, match=r"no space .*: free some space, then go on by --resume$"):
        Checkpoints(tmp_path).save(state(1))
    with pytest.raises(StoreError, match=r"no space left on device$"):
        save_model(tmp_path / "m.safetensors", MODEL, ARRAYS, {})


def test_a_model_file_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(path, MODEL, ARRAYS, {"rounds": "10"})
    model, arrays = load_model_file(path)
    assert model == MODEL
    assert_equal(arrays, ARRAYS)
    from safetensors import safe_open

    with safe_open(path, framework="np") as f:
        assert json.loads(f.metadata()["pocketfed"])["rounds"] == "10"
        assert sorted(f.keys()) == sorted(ARRAYS)
    save_model(tmp_path / "again", MODEL, ARRAYS, {"rounds": "10"})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_a_damaged_model_file_is_one_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.safetensors"
    save_model(path, MODEL, ARRAYS, {})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StoreError, match="damaged or no safetensors") as e:
        load_model_file(path)
    assert "\n" not in str(e.value)


def test_a_foreign_file_gives_arrays_but_no_model(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "foreign.safetensors"
    save_file(ARRAYS, path)
    assert set(load_arrays(path)) == set(ARRAYS)
    with pytest.raises(StoreError, match="does not say which model"):
        load_model_file(path)
    with pytest.raises(StoreError, match="no such file"):
        load_arrays(tmp_path / "none.safetensors")


def test_without_safetensors_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    save_model(path, MODEL, ARRAYS, {})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pocketfed\[server\]'"):
        save_model(path, MODEL, ARRAYS, {})
    with pytest.raises(MissingExtraError, match="safetensors"):
        load_model_file(path)
