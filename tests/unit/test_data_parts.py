"""Parts written to files: read back equal, all or none, nothing overwritten."""

import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from client.config import PartitionConfig
from client.data import Dataset, load, partition, write_parts
from client.errors import DataError


def dataset(n: int = 12, columns: dict[str, np.ndarray] | None = None) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (n, 1, 4, 4), np.uint8)
    return Dataset(x, (np.arange(n) % 3).astype(np.int32), "some.npz", columns or {})


def parts(whole: Dataset) -> list[tuple[str, Dataset]]:
    config = PartitionConfig(kind="iid", nodes=3)
    shared = partition(whole.y, whole.columns, config, 1)
    return [(name, whole.subset(index)) for name, index in shared]


def assert_equal(a: Dataset, b: Dataset) -> None:
    pairs = {"x": (a.x, b.x), "y": (a.y, b.y)}
    pairs |= {name: (column, b.columns[name]) for name, column in a.columns.items()}
    assert a.columns.keys() == b.columns.keys()
    for one, other in pairs.values():
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_parts_read_back_equal_and_are_named_by_their_files(tmp_path: Path) -> None:
    # Names that a careless call of numpy.savez would take for its own arguments.
    columns = {"file": np.array(list("abcdefghijkl")), "allow_pickle": np.arange(12)}
    whole = dataset(columns=columns)
    named, out = parts(whole), tmp_path / "new" / "parts"
    written = write_parts(named, out)
    assert [w.path.stem for w in written] == [name for name, _ in named]
    assert files(out) == ["node-0.npz", "node-1.npz", "node-2.npz"]
    for (_, part), w in zip(named, written, strict=True):
        assert_equal(part, load(str(w.path)))
        assert w.num_examples == 4
        assert w.class_counts == part.class_counts()
        assert sum(w.class_counts.values()) == 4


def test_other_readers_read_them(tmp_path: Path) -> None:
    [written] = write_parts([("node-0", dataset())], tmp_path)
    with np.load(written.path, allow_pickle=False) as found:
        assert sorted(found) == ["x", "y"]
        np.testing.assert_array_equal(found["x"], dataset().x)


def test_examples_in_float32_read_back_equal(tmp_path: Path) -> None:
    part = Dataset(np.ones((2, 3), np.float32) / 3, np.zeros(2, np.int32), "some.npz", {})
    [written] = write_parts([("speaker-3", part)], tmp_path)
    assert_equal(part, load(str(written.path)))


def test_the_held_out_part_has_its_file(tmp_path: Path) -> None:
    held = dataset(5)
    written = write_parts(parts(dataset()), tmp_path, held)
    assert written[-1].path == tmp_path / "holdout.npz"
    assert written[-1].num_examples == 5
    assert_equal(held, load(str(tmp_path / "holdout.npz")))


def test_equal_parts_give_equal_bytes(tmp_path: Path) -> None:
    [a] = write_parts([("n", dataset())], tmp_path / "a")
    [b] = write_parts([("n", dataset())], tmp_path / "b")
    assert a.path.read_bytes() == b.path.read_bytes()


def test_nothing_is_overwritten_and_splits_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("may stay")
    write_parts([("node-0", dataset())], tmp_path)
    before = (tmp_path / "node-0.npz").read_bytes()
    for name in ("node-0", "node-7"):
        with pytest.raises(DataError, match=r"already holds node-0\.npz; nothing is overwritten"):
            write_parts([(name, dataset(3))], tmp_path)
    assert files(tmp_path) == ["README", "node-0.npz"]
    assert (tmp_path / "node-0.npz").read_bytes() == before


def test_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="two parts are called 'holdout'"):
        write_parts([("holdout", dataset())], tmp_path / "out", dataset())
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/out: cannot be written: Not a directory$"):
        write_parts(parts(dataset()), tmp_path / "file" / "out")


def test_a_full_disk_leaves_no_part_behind(tmp_path: Path) -> None:
    small, large = dataset(3), dataset(2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))  # a real write that really fails
    try:
        with pytest.raises(DataError, match=r"cannot be written: File too large$"):
            write_parts([("node-0", small), ("node-1", large)], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == []


def test_a_disk_that_fails_late_leaves_no_part_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"cannot be written: No space left on device$"):
        write_parts(parts(dataset()), tmp_path)
    assert files(tmp_path) == []
