"""Reading IDX, the format of MNIST, Fashion-MNIST, KMNIST and EMNIST; plain or gzipped.

A file: two zero bytes, a type code (8: unsigned byte), the number of axes, each axis's length in
4 bytes big-endian, then the values (LeCun, "The MNIST database of handwritten digits").
"""

from __future__ import annotations

import gzip
import re
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from client.data.bounded import read_up_to, unpacked_limit
from client.data.convert import make_dataset
from client.data.dataset import Dataset
from client.data.reading import entries, readable
from client.errors import DataError

IMAGES = re.compile(r"(?P<stem>.*)images(?P<sep>[-.])idx3[-.]ubyte(\.gz)?")
"""Names of images files: train-images-idx3-ubyte, train-images.idx3-ubyte, either with .gz."""


def load_idx(images: Path) -> Dataset:
    """The pair of an images file and the labels file beside it; DataError if either is unfit."""
    labels = _labels_beside(images)
    x = read_idx(images, axes=3)
    y = read_idx(labels, axes=1)
    if len(x) != len(y):
        raise DataError(
            f"{images}: {len(x)} images, but {labels.name} has {len(y)} labels; "
            "the two files do not belong together"
        )
    return make_dataset(x, y, str(images))


def load_folder(folder: Path) -> Dataset:
    """The training pair in a folder: its only images file with 'train' in its name.

    Where the same file lies there plain and gzipped, the plain one is read.
    """
    names = [path.name for path in entries(folder)]
    found = {n for n in names if IMAGES.fullmatch(n) and "train" in n}
    found = {n for n in found if n.removesuffix(".gz") not in found - {n}}
    if len(found) != 1:
        what = ", ".join(sorted(found)) if found else f"{len(names)} other files"
        raise DataError(
            f"{folder}: needs one file train-images-idx3-ubyte or .gz, found {what}; "
            "name the .npz or images file itself"
        )
    return load_idx(folder / found.pop())


def _labels_beside(images: Path) -> Path:
    match = IMAGES.fullmatch(images.name)
    if match is None:
        raise DataError(
            f"{images}: an IDX images file is named *-images-idx3-ubyte or *-images-idx3-ubyte.gz"
        )
    plain = images.name.removesuffix(".gz")
    stem = match["stem"]
    name = stem + plain[len(stem) :].replace("images", "labels", 1).replace("idx3", "idx1", 1)
    packed = images.name.endswith(".gz")
    candidates = (f"{name}.gz", name) if packed else (name, f"{name}.gz")
    for candidate in candidates:
        if (images.parent / candidate).is_file():
            return images.parent / candidate
    raise DataError(f"{images}: its labels are missing: no {' or '.join(candidates)} beside it")


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes with ``axes`` axes."""
    with readable(path):
        packed_nbytes = path.stat().st_size
        if path.suffix != ".gz":
            with path.open("rb") as f:
                return _read(f, axes, path, packed_nbytes)
        try:
            with gzip.open(path) as f:
                return _read(cast(IO[bytes], f), axes, path, unpacked_limit(packed_nbytes))
        except (gzip.BadGzipFile, zlib.error, EOFError) as e:
            reason = " ".join(str(e).split()) or type(e).__name__
            raise DataError(f"{path}: not a whole gzip file ({reason}); fetch it again") from None


def _read(f: IO[bytes], axes: int, path: Path, limit: int) -> NDArray[np.uint8]:
    magic = f.read(4)
    needed = bytes([0, 0, 8, axes])
    if magic != needed:
        raise DataError(
            f"{path}: starts with bytes {magic.hex() or 'none'}, needs {needed.hex()}: "
            f"IDX of unsigned bytes with {axes} axes"
        )
    sizes = f.read(4 * axes)
    if len(sizes) != 4 * axes:
        raise DataError(f"{path}: ends within its header; fetch it again")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    expected = prod(shape)
    if expected > limit:
        raise DataError(
            f"{path}: shape {shape} takes {expected} bytes, but the file can hold at most {limit}; "
            "it is damaged or cut off: fetch it again"
        )
    body = read_up_to(f, expected + 1)
    if len(body) != expected:
        found = len(body) if len(body) < expected else "more"
        raise DataError(
            f"{path}: shape {shape} takes {expected} bytes, found {found}; "
            "it is damaged or cut off: fetch it again"
        )
    array: NDArray[Any] = np.frombuffer(body, np.uint8)
    return array.reshape(shape)
