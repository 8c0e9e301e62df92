"""Arrays as they were found -> a Dataset, or one line that says what does not fit.

- ``x``, (n, *shape): uint8 stays uint8; float32 stays; float64, float16 and integers of other
  widths become float32 (integers up to 2**24, which float32 holds exactly). Numbers must be finite.
  uint8 of shape (n, h, w) are images of one channel and become (n, 1, h, w). Images (n, c, h, w)
  in integers of other widths hold the same pixels, 0 to 255, and become uint8.
- ``y``, (n, *labels): integers from 0 (class numbers) become int32; floating-point numbers, which
  must be finite, become float32.
- further columns, (n,): integers or text, kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.dataset import Dataset
from client.errors import DataError
from client.model.losses import Labels

INT32_MAX = 2**31 - 1
FLOAT32_EXACT = 2**24  # float32 holds every whole number up to here


def make_dataset(
    x: NDArray[Any], y: NDArray[Any], source: str, columns: Mapping[str, NDArray[Any]] | None = None
) -> Dataset:
    """A Dataset by the conversions above; DataError (naming ``source``) for what they leave out."""
    x = make_inputs(x, f"{source}: x")
    y = _labels(y, f"{source}: y")
    if len(x) != len(y):
        raise DataError(
            f"{source}: x has {len(x)} examples and y has {len(y)} labels, needs as many of both"
        )
    kept = {name: _column(c, f"{source}: {name}") for name, c in (columns or {}).items()}
    return Dataset(x, y, source, kept)


def make_inputs(x: NDArray[Any], where: str) -> NDArray[Any]:
    """Examples alone, (n, *shape), by the conversions above; DataError naming ``where``."""
    if x.ndim < 2:
        raise DataError(
            f"{where}: found shape {x.shape}, needs (examples, *shape of an example), "
            "for example (n, 6) or (n, 1, 28, 28)"
        )
    if x.size == 0:
        raise DataError(f"{where}: found shape {x.shape}, which holds no numbers; needs examples")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x)
    if x.dtype.kind not in "iuf" or x.dtype.itemsize > 8:
        raise DataError(
            f"{where}: found dtype {x.dtype}, allowed: uint8 for images, float32 "
            "(float64, float16 and integers are converted)"
        )
    if x.dtype.kind != "f" and x.ndim == 4:
        return _pixels(x, where)
    with np.errstate(over="ignore"):  # what float32 cannot hold is reported as infinite below
        converted = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype.kind == "f":
        _refuse_infinite(converted, where)
    else:
        _refuse_inexact(x, where)
    return converted


def _pixels(x: NDArray[Any], where: str) -> NDArray[np.uint8]:
    """Images in integers: float32 would be taken as normalised already."""
    low, high = x.min(), x.max()
    if low < 0 or high > 255:
        raise DataError(
            f"{where}: found {x.dtype} images from {low} to {high}, allowed: pixels from 0 to 255, "
            "as in uint8, or float32, which is taken as it is: scale them and save either"
        )
    return np.ascontiguousarray(x, np.uint8)


def _refuse_infinite(x: NDArray[np.float32], where: str) -> None:
    bad = np.flatnonzero(~np.isfinite(x))
    if len(bad):
        first = [int(i) for i in np.unravel_index(bad[0], x.shape)]
        raise DataError(
            f"{where}: {len(bad)} of {x.size} values are not a number or infinite in float32, "
            f"the first at index {first}; remove those examples or replace the values"
        )


def _refuse_inexact(x: NDArray[Any], where: str) -> None:
    bad = np.flatnonzero((x < -FLOAT32_EXACT) | (x > FLOAT32_EXACT))
    if len(bad):
        first = [int(i) for i in np.unravel_index(bad[0], x.shape)]
        raise DataError(
            f"{where}: {len(bad)} of {x.size} values are beyond {FLOAT32_EXACT}, where float32 "
            f"loses digits, the first is {x.flat[bad[0]]} at index {first}; scale them and save "
            "float32"
        )


def _labels(y: NDArray[Any], where: str) -> Labels:
    if not y.ndim or (y.size == 0 and len(y)):
        raise DataError(f"{where}: found shape {y.shape}, needs labels for each example")
    if y.dtype.kind == "f" and y.dtype.itemsize <= 8:
        with np.errstate(over="ignore"):  # what float32 cannot hold is reported as infinite
            targets = np.ascontiguousarray(y, np.float32)
        _refuse_infinite(targets, where)
        return targets
    if y.dtype.kind not in "iu":
        raise DataError(
            f"{where}: found dtype {y.dtype}, needs whole class numbers (y.astype('int32')) or "
            "float32 targets"
        )
    bad = np.flatnonzero((y < 0) | (y > INT32_MAX))
    if len(bad):
        first = [int(i) for i in np.unravel_index(bad[0], y.shape)]
        at = first[0] if len(first) == 1 else first
        raise DataError(
            f"{where}: {len(bad)} labels are out of range, the first is {y.flat[bad[0]]} at index "
            f"{at}; allowed: class numbers from 0 to {INT32_MAX}, or float32 targets"
        )
    return np.ascontiguousarray(y, np.int32)


def _column(column: NDArray[Any], where: str) -> NDArray[Any]:
    if column.ndim != 1:
        raise DataError(
            f"{where}: found shape {column.shape}; besides x and y, a file may hold columns of "
            "one value for each example, (n,)"
        )
    if column.dtype.kind not in "iuU":
        raise DataError(f"{where}: found dtype {column.dtype}, allowed: integers or text (str)")
    native = column.astype(column.dtype.newbyteorder("="))
    if native.dtype.kind == "U":
        code_points = native.view(np.uint32)
        bad = (code_points > 0x10FFFF) | ((code_points >= 0xD800) & (code_points <= 0xDFFF))
        if bad.any():
            raise DataError(f"{where}: holds characters that are not Unicode; the file is damaged")
    return native
