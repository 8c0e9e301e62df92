"""Reading .npz: a zip of .npy arrays ``x``, ``y`` and further columns. Never pickles.

The reader trusts no size that a file declares: a member's .npy header must account for its bytes
exactly, and all members together may unpack to at most ``unpacked_limit`` bytes.
Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import re
import struct
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from client.data.bounded import read_up_to, unpacked_limit
from client.data.convert import make_dataset, make_inputs
from client.data.dataset import Dataset
from client.data.reading import readable
from client.errors import DataError

MAX_HEADER_NBYTES = 10_000
SAVE_HINT = "save it again by numpy.savez(file, x=x, y=y)"

# All that zipfile and zlib raise on damaged input (an encrypted member is a RuntimeError).
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
)


def load_npz(path: Path) -> Dataset:
    """Examples ``x``, labels ``y`` and columns of a file; DataError in one line if it is unfit."""
    arrays = read_npz(path)
    x, y = _get(arrays, "x", path), _get(arrays, "y", path)
    columns = {name: array for name, array in arrays.items() if name not in ("x", "y")}
    return make_dataset(x, y, str(path), columns)


def load_npz_inputs(path: Path) -> NDArray[Any]:
    """Examples ``x`` alone, (n, *shape), whether or not the file has labels."""
    return make_inputs(_get(read_npz(path), "x", path), f"{path}: x")


def _get(arrays: dict[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    if key not in arrays:
        found = ", ".join(sorted(arrays)) or "none"
        raise DataError(f"{path}: no array '{key}', found: {found}; {SAVE_HINT}")
    return arrays[key]


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name, as they are stored."""
    with readable(path):
        packed_nbytes = path.stat().st_size
        try:
            with zipfile.ZipFile(path) as archive:
                _check_members(archive, packed_nbytes, path)
                return {
                    info.filename.removesuffix(".npy"): _read_member(archive, info, path)
                    for info in archive.infolist()
                }
        except _DAMAGED as e:
            reason = " ".join(str(e).split()) or type(e).__name__
            raise DataError(f"{path}: not a whole .npz file ({reason}); {SAVE_HINT}") from None


def _check_members(archive: zipfile.ZipFile, packed_nbytes: int, path: Path) -> None:
    members = archive.infolist()
    names = [info.filename for info in members]
    for info in members:
        if not info.filename.endswith(".npy"):
            raise DataError(f"{path}: holds {info.filename!r}, allowed: .npy arrays; {SAVE_HINT}")
        if not info.filename.isprintable():
            raise DataError(f"{path}: the name {info.filename!r} is not plain text; {SAVE_HINT}")
        if names.count(info.filename) > 1:
            raise DataError(f"{path}: holds '{info.filename}' twice; {SAVE_HINT}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{path}: '{info.filename}' is packed by method {info.compress_type}, "
                f"allowed: stored (0), deflated (8); {SAVE_HINT}"
            )
    unpacked = sum(info.file_size for info in members)
    if unpacked > unpacked_limit(packed_nbytes):
        raise DataError(
            f"{path}: {packed_nbytes} bytes that claim to unpack to {unpacked}, allowed: "
            f"{unpacked_limit(packed_nbytes)}; damaged, or {SAVE_HINT} without compression"
        )


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    where = f"{path}: {info.filename.removesuffix('.npy')}"
    with archive.open(info) as f:
        dtype, shape, fortran_order, header_nbytes = _read_header(f, where)
        expected = prod(shape) * dtype.itemsize
        if header_nbytes + expected != info.file_size:
            raise DataError(
                f"{where}: shape {shape} of {dtype} takes {expected} bytes, "
                f"found {info.file_size - header_nbytes}; the file is damaged: {SAVE_HINT}"
            )
        body = read_up_to(f, expected + 1)  # to the end, where the checksum is compared
    if len(body) != expected:
        raise DataError(
            f"{where}: needs {expected} bytes, found {len(body)}; the file is damaged: {SAVE_HINT}"
        )
    array: NDArray[Any] = np.frombuffer(body, dtype)
    return array.reshape(shape, order="F" if fortran_order else "C")


def _read_header(f: IO[bytes], where: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """(dtype, shape, Fortran order, bytes read) from the start of a .npy array."""
    start = f.read(8)
    if len(start) != 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise DataError(f"{where}: does not start as a .npy array does; {SAVE_HINT}")
    width = 2 if start[6] == 1 else 4
    nbytes = int.from_bytes(f.read(width), "little")
    if nbytes > MAX_HEADER_NBYTES:
        raise DataError(
            f"{where}: a .npy header of {nbytes} bytes, allowed: {MAX_HEADER_NBYTES}; {SAVE_HINT}"
        )
    raw = f.read(nbytes)
    try:
        header = ast.literal_eval(raw.decode("latin1").strip())
        shape, descr, fortran_order = header["shape"], header["descr"], header["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise DataError(f"{where}: the .npy header cannot be read; {SAVE_HINT}") from None
    valid_shape = isinstance(shape, tuple) and all(type(s) is int and s >= 0 for s in shape)
    if not valid_shape or len(shape) > 32 or not isinstance(fortran_order, bool):
        raise DataError(f"{where}: the .npy header has no valid shape; {SAVE_HINT}")
    return _plain_dtype(descr, where), shape, fortran_order, 8 + width + nbytes


def _plain_dtype(descr: object, where: str) -> np.dtype[Any]:
    """A dtype of plain numbers or text. Objects (pickles) and records are refused."""
    hint = "allowed: numbers, and text (str) in columns; pickled objects are never loaded"
    if not isinstance(descr, str):
        raise DataError(f"{where}: found an array of records, {hint}")
    try:
        if not re.fullmatch(r"[<>=|]?[biufcU][1-9][0-9]*", descr):
            raise TypeError
        return np.dtype(descr)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where}: found dtype {descr[:40]!r}, {hint}") from None
