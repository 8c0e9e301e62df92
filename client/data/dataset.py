"""A data set in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.errors import DataError
from client.model.losses import Labels


@dataclass(frozen=True)
class Dataset:
    """Examples and their labels.

    ``x``: (n, *shape), uint8 (images, kept so until the device's first kernel) or float32;
    ``y``: (n, *labels), int32 class numbers or float32 targets, (n,) where an example has one
    class; ``columns``: further (n,) columns by name, such as the person
    an example came from; ``source``: the file or data set, for messages.
    """

    x: NDArray[Any]
    y: Labels
    source: str
    columns: dict[str, NDArray[Any]]

    def __post_init__(self) -> None:
        if self.x.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"{self.source}: x: found dtype {self.x.dtype}, allowed: uint8, float32"
            )
        if self.y.dtype not in (np.int32, np.float32):
            raise DataError(
                f"{self.source}: y: found dtype {self.y.dtype}, allowed: int32, float32"
            )
        if not self.y.ndim or len(self.y) != len(self.x):
            raise DataError(
                f"{self.source}: y: found shape {self.y.shape}, "
                f"needs labels for each of the {len(self.x)} examples"
            )
        for name, column in self.columns.items():
            if column.shape != (len(self.x),):
                raise DataError(
                    f"{self.source}: {name}: found shape {column.shape}, "
                    f"needs one value for each of the {len(self.x)} examples"
                )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def has_classes(self) -> bool:
        """Whether each example is of one class."""
        return self.y.ndim == 1 and self.y.dtype == np.int32

    def class_counts(self) -> dict[int, int]:
        """How many examples each class has, by class number; classes without any are left out.

        Empty where examples are not of one class each.
        """
        if not self.has_classes:
            return {}
        classes, counts = np.unique(self.y, return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))

    def sha256(self) -> str:
        """Hex digest of all arrays, their types and shapes; the same for a copy elsewhere."""
        digest = hashlib.sha256()
        for name, array in (("x", self.x), ("y", self.y), *sorted(self.columns.items())):
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def subset(self, index: NDArray[np.integer[Any]]) -> Dataset:
        """The examples at ``index``, in that order."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Dataset(self.x[index], self.y[index], self.source, columns)
