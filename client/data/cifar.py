"""Reading the binary version of CIFAR-10: a folder with ``data_batch_1.bin`` to ``…_5.bin``.

A file is records of 3,073 bytes: the class, 0 to 9, then 32x32 bytes each of red, green and blue,
row by row (Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from client.data.convert import make_dataset
from client.data.dataset import Dataset
from client.data.reading import entries, readable
from client.errors import DataError

BATCH = re.compile(r"data_batch_\d+\.bin")
IMAGE = (3, 32, 32)
RECORD_NBYTES = 1 + 3 * 32 * 32
CLASSES = 10


def is_cifar10(folder: Path) -> bool:
    """Whether a folder has a training batch of CIFAR-10's binary version."""
    return bool(_batches(folder))


def load_cifar10(folder: Path) -> Dataset:
    """All training batches in a folder, in the order of their names; DataError if one is unfit.

    ``x``: (n, 3, 32, 32) uint8. ``test_batch.bin`` is not read: ``data.holdout`` says how many
    examples are kept apart.
    """
    with readable(folder):
        records = np.concatenate([_read(path) for path in _batches(folder)])
        return make_dataset(records[:, 1:].reshape(-1, *IMAGE), records[:, 0], str(folder))


def _batches(folder: Path) -> list[Path]:
    return [path for path in entries(folder) if BATCH.fullmatch(path.name)]


def _read(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Records (n, 3073) of one file."""
    with readable(path):
        content = path.read_bytes()
    if not content or len(content) % RECORD_NBYTES:
        raise DataError(
            f"{path}: {len(content)} bytes are not whole records of {RECORD_NBYTES} (class and "
            "32x32 image); it is damaged or cut off: fetch it again"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_NBYTES)
    bad = np.flatnonzero(records[:, 0] >= CLASSES)
    if len(bad):
        raise DataError(
            f"{path}: record {bad[0]} has class {records[bad[0], 0]}, allowed: 0 to "
            f"{CLASSES - 1}; it is damaged, or not CIFAR-10's binary version: fetch it again"
        )
    return records
