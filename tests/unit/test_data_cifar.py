"""CIFAR-10's binary version, in small files of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client.data import load
from client.errors import DataError


def write(folder: Path, number: int, labels: list[int]) -> np.ndarray:
    """A batch with these classes; returns its images, as they must be read."""
    x = np.random.default_rng(number).integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    with (folder / f"data_batch_{number}.bin").open("wb") as f:
        for label, image in zip(labels, x, strict=True):
            f.write(bytes([label]))
            for plane in image:  # red, green, blue
                f.write(plane.tobytes())
    return x


def test_batches_are_read_in_order_and_the_test_batch_is_not(tmp_path: Path) -> None:
    second, first = write(tmp_path, 2, [9]), write(tmp_path, 1, [3, 0])
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073))
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    cifar = load(str(tmp_path))
    assert cifar.y.tolist() == [3, 0, 9]
    assert cifar.x.dtype == np.uint8
    np.testing.assert_array_equal(cifar.x, np.concatenate([first, second]))
    assert cifar.source == str(tmp_path)


@pytest.mark.parametrize("nbytes", [0, 3072, 3074])
def test_a_file_that_is_cut_off_is_one_line(tmp_path: Path, nbytes: int) -> None:
    write(tmp_path, 1, [3])
    (tmp_path / "data_batch_2.bin").write_bytes(bytes(nbytes))
    with pytest.raises(
        DataError, match=rf"data_batch_2\.bin: {nbytes} bytes are not whole records"
    ):
        load(str(tmp_path))


def test_a_class_beyond_the_ten_is_damage(tmp_path: Path) -> None:
    write(tmp_path, 1, [3, 10])
    with pytest.raises(DataError, match=r"data_batch_1\.bin: record 1 has class 10, allowed: 0 to"):
        load(str(tmp_path))
