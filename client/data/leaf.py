"""Reading LEAF's JSON (Caldas et al., arXiv 1812.01097): examples by user.

    {"users": ["a", …], "num_samples": [2, …],
     "user_data": {"a": {"x": [example, …], "y": [label, …]}, …}}

Other keys (``hierarchies``) are not read. An example is a list of numbers with a class number as
its label, as in FEMNIST (784 grey values), or a text with the character that follows, as in
Shakespeare (80 characters, numbered as in client/data/text.py).
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.convert import make_dataset
from client.data.dataset import Dataset
from client.data.reading import entries, readable
from client.data.text import encode
from client.errors import DataError
from client.fields import describe

USER = "user"
"""The column that says whose example it is: ``partition: {kind: column, column: user}``."""


def leaf_files(folder: Path) -> list[Path]:
    """The .json files of a folder, by name."""
    return [path for path in entries(folder) if path.suffix == ".json"]


def load_leaf(files: list[Path], source: str) -> Dataset:
    """The examples of all users of some files, and the column ``user``; DataError in one line.

    ``x``: (n, numbers) float32, or (n, characters) uint8.
    """
    parts = [part for path in files for part in _read(path)]
    widths = {x.shape[1:]: where for where, _, x, _ in parts}
    if len(widths) > 1:
        (a, first), (b, second) = list(widths.items())[:2]
        raise DataError(f"{second}: examples of {b[0]} values, but {first} has examples of {a[0]}")
    users = [np.full(len(x), user) for _, user, x, _ in parts]
    return make_dataset(
        np.concatenate([x for _, _, x, _ in parts]),
        np.concatenate([y for _, _, _, y in parts]),
        source,
        {USER: np.concatenate(users)},
    )


def _read(path: Path) -> list[tuple[str, str, NDArray[Any], NDArray[Any]]]:
    """(place, user, x, y) of each user of a file."""
    try:
        with readable(path):
            value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        reason = " ".join(str(e).split())
        raise DataError(f"{path}: not JSON ({reason[:80]}); fetch it again") from None
    data = value.get("user_data") if isinstance(value, dict) else None
    if not isinstance(data, dict) or not data:
        raise DataError(
            f"{path}: has no users below the key 'user_data', which LEAF's JSON has; "
            "needs {users, num_samples, user_data: {user: {x, y}}}"
        )
    return [_user(own, user, f"{path}: user_data.{user}") for user, own in data.items()]


def _user(own: Any, user: str, where: str) -> tuple[str, str, NDArray[Any], NDArray[Any]]:
    x, y = (own.get("x"), own.get("y")) if isinstance(own, dict) else (None, None)
    if not (isinstance(x, list) and isinstance(y, list) and x and len(x) == len(y)):
        raise DataError(f"{where}: needs lists x and y with as many entries, at least one")
    if all(isinstance(example, str) for example in x):
        if not all(isinstance(label, str) and len(label) == 1 for label in y):
            raise DataError(f"{where}.y: needs for each text of x the one character that follows")
        if len({len(example) for example in x}) > 1 or not x[0]:
            raise DataError(f"{where}.x: texts must have as many characters each, at least one")
        tokens = np.concatenate([encode(text, f"{where}.x[{i}]") for i, text in enumerate(x)])
        return where, user, tokens.reshape(len(x), -1), encode("".join(y), f"{where}.y")
    examples: NDArray[Any] = np.empty(0)
    labels: NDArray[Any] = np.empty(0)
    # Rows of different lengths, or what is no number, are refused below.
    with suppress(ValueError, TypeError, OverflowError):
        examples, labels = np.array(x, np.float32), np.array(y)
    if examples.ndim != 2 or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{where}: needs x of texts, or of lists with as many numbers each and y of class "
            f"numbers; found {describe(x[0])} with {describe(y[0])}"
        )
    return where, user, examples, labels
