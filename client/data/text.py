"""Text as characters: each stands for its number in LEAF's alphabet of 80.

An example is ``steps`` characters, its label the character that follows. LEAF (Caldas et al., arXiv
1812.01097) has this alphabet for Shakespeare; it is fixed, so that all nodes mean the same by a
number whatever their texts hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from client.data.dataset import Dataset
from client.data.reading import readable
from client.errors import DataError

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = 255


@dataclass(frozen=True)
class TextCut:
    """How a text becomes examples: characters of each, and from one to the next; labels of each
    step, not of the last alone."""

    steps: int
    stride: int = 1
    each_step: bool = False


LEAF_CUT = TextCut(80)
"""Where no model says how."""


def load_text(path: Path, cut: TextCut = LEAF_CUT) -> Dataset:
    """Examples of a text file, in its order; DataError if it is unfit.

    ``x``: (n, steps) uint8; ``y``: (n,) the characters that follow, or (n, steps) those that follow
    each step. Line ends become "\\n", whatever they are.
    """
    try:
        with readable(path):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise DataError(f"{path}: not text in UTF-8 ({e.reason} at byte {e.start})") from None
    tokens = encode(text, str(path))
    if len(tokens) <= cut.steps:
        raise DataError(
            f"{path}: found {len(tokens)} characters, needs more than the {cut.steps} of an example"
        )
    windows = sliding_window_view(tokens, cut.steps + 1)[:: cut.stride]
    x = np.ascontiguousarray(windows[:, :-1])
    y = windows[:, 1:] if cut.each_step else windows[:, -1]
    return Dataset(x, y.astype(np.int32), str(path), {})


def encode(text: str, where: str) -> NDArray[np.uint8]:
    """Numbers of a text's characters, (n,); DataError (naming ``where``) for one that has none."""
    codes: NDArray[Any] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    tokens: NDArray[np.uint8] = _TABLE[np.minimum(codes, len(_TABLE) - 1)]
    bad = np.flatnonzero(tokens == UNKNOWN)
    if len(bad):
        at = int(bad[0])
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise DataError(
            f"{where}: found {text[at]!r} in line {line}, column {column}, which is not one of the "
            f"{len(ALPHABET)} characters of LEAF's alphabet; {len(bad)} of {len(text)} characters "
            "are not: replace them or leave them out"
        )
    return tokens


def _table() -> NDArray[np.uint8]:
    """Number of each character by its code; the last place stands for all codes beyond."""
    table = np.full(max(map(ord, ALPHABET)) + 2, UNKNOWN, np.uint8)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    return table


_TABLE = _table()
