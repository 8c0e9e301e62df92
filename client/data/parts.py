"""Writing the parts of a data set to files, one .npz per node, that ``load`` reads back."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client.data.dataset import Dataset
from client.errors import DataError

HOLDOUT = "holdout"


@dataclass(frozen=True)
class WrittenPart:
    """A file that was written: the node's name is its stem."""

    path: Path
    num_examples: int
    class_counts: dict[int, int]


def write_parts(
    parts: Sequence[tuple[str, Dataset]], out: Path, holdout: Dataset | None = None
) -> list[WrittenPart]:
    """Write ``<name>.npz`` for each part, and ``holdout.npz`` where one is given, to ``out``.

    All files or none: they are written whole to a folder inside ``out`` first. DataError where
    ``out`` already holds .npz files (nothing is overwritten, and two splits in one folder would
    give an example to two nodes), where names are equal, or where it cannot be written.
    """
    named = [*parts, (HOLDOUT, holdout)] if holdout is not None else list(parts)
    twice = [name for name, k in Counter(name for name, _ in named).items() if k > 1]
    if twice:
        raise DataError(f"{out}: two parts are called '{twice[0]}'; names of parts must differ")
    try:
        out.mkdir(parents=True, exist_ok=True)
        present = sorted(out.glob("*.npz"))
        if present:
            raise DataError(
                f"{out}: already holds {present[0].name}; nothing is overwritten: "
                "name an empty folder, or remove its .npz files"
            )
        with tempfile.TemporaryDirectory(prefix=".split-", dir=out) as stage:
            for name, dataset in named:
                _write(dataset, Path(stage) / f"{name}.npz")
            for name, _ in named:
                os.replace(Path(stage) / f"{name}.npz", out / f"{name}.npz")
    except OSError as e:
        raise DataError(f"{out}: cannot be written: {e.strerror or e}") from None
    return [_written(out / f"{name}.npz", dataset) for name, dataset in named]


def _write(dataset: Dataset, path: Path) -> None:
    # Not numpy.savez: it takes columns as keywords, and one called 'file' would be its argument.
    arrays = {"x": dataset.x, "y": dataset.y, **dataset.columns}
    with path.open("wb") as f:
        with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                # ZipInfo's default date: equal parts give equal bytes.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        f.flush()
        os.fsync(f.fileno())


def _written(path: Path, dataset: Dataset) -> WrittenPart:
    return WrittenPart(path, len(dataset), dataset.class_counts())
