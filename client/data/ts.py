"""Reading .ts, the text format of the archive at timeseriesclassification.com.

Lines that begin with ``#`` are comments, those with ``@`` a header that ends with ``@data``. Then a
line for each example: its channels, separated by colons, each a list of numbers separated by
commas, and after the last colon its class, one of the names after ``@classLabel true``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.data.reading import readable
from client.errors import DataError

REMEDY = "the file is damaged: install its package again"


def load_ts(
    paths: Sequence[Path],
) -> tuple[NDArray[np.float32], NDArray[np.int32], tuple[str, ...]]:
    """The examples of several files of one set, one file after the other.

    Returns x, (n, channels, steps), where shorter series end with zeros; y, (n,): a class's place
    among the names; the names in the header's order. DataError in one line if a file is unfit.
    """
    parts = [read_ts(path) for path in paths]
    names = parts[0][2]
    for path, (_, _, found) in zip(paths, parts, strict=True):
        if found != names:
            raise DataError(
                f"{path}: classes {', '.join(found)}, but {paths[0].name} has {', '.join(names)}; "
                "the files do not belong together"
            )
    series = list(chain.from_iterable(s for s, _, _ in parts))
    channels = {len(s) for s in series}
    if len(channels) != 1:
        raise DataError(f"{paths[0]}: series of {sorted(channels)} channels; {REMEDY}")
    x = np.zeros((len(series), channels.pop(), max(s.shape[1] for s in series)), np.float32)
    for row, s in zip(x, series, strict=True):
        row[:, : s.shape[1]] = s
    return x, np.concatenate([y for _, y, _ in parts]), names


def read_ts(path: Path) -> tuple[list[NDArray[np.float32]], NDArray[np.int32], tuple[str, ...]]:
    """One file: series (channels, steps) of their own lengths, class numbers, names of classes."""
    try:
        with readable(path):
            lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file; {REMEDY}") from None
    names: tuple[str, ...] = ()
    begun = False
    series, y = [], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if begun:
            s, label = _example(line, f"{path}: line {number}")
            if label not in names:
                raise DataError(
                    f"{path}: line {number}: class '{label[:40]}' is not among "
                    f"{', '.join(names) or 'none'}; {REMEDY}"
                )
            series.append(s)
            y.append(names.index(label))
        elif words[0].lower() == "@classlabel" and words[1:2] == ["true"]:
            names = tuple(words[2:])
        begun = begun or words[0].lower() == "@data"
    if not series:
        raise DataError(f"{path}: no examples after a line '@data'; {REMEDY}")
    return series, np.array(y, np.int32), names


def _example(line: str, where: str) -> tuple[NDArray[np.float32], str]:
    *channels, label = line.strip().split(":")
    if not channels:
        raise DataError(f"{where}: no class after the last colon; {REMEDY}")
    try:
        rows = [[float(v) for v in channel.split(",")] for channel in channels]
    except ValueError as e:
        raise DataError(f"{where}: {' '.join(str(e).split())[:80]}; {REMEDY}") from None
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise DataError(f"{where}: channels of {sorted(lengths)} steps; {REMEDY}")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite later
        return np.array(rows, np.float32), label
