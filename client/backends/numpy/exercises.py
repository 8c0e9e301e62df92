"""What numpy is measured by: products in BLAS, copies, and calls on one element."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from client.backends.exercises import Exercise, Exercises, LinkKind

MOST_NBYTES = 2**30


class NumpyExercises(Exercises):
    """Host and device are one: a transfer is a copy, as ``put_input`` and ``take_output`` do."""

    link_kinds: tuple[LinkKind, ...] = ("mapped",)
    link_used: LinkKind = "mapped"
    most_nbytes = MOST_NBYTES

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def gemm(self, m: int, n: int, k: int) -> Exercise:
        a, b = np.ones((m, k), self._dtype), np.ones((k, n), self._dtype)
        return Exercise(partial(np.matmul, a, b, out=np.empty((m, n), self._dtype)))

    def copy(self, nbytes: int) -> Exercise:
        values = np.ones(nbytes, np.uint8)
        return Exercise(partial(np.copyto, values.copy(), values))

    def launch(self) -> Exercise:
        one = np.zeros(1, self._dtype)
        return Exercise(partial(np.add, one, one, out=one))

    def upload(self, nbytes: int, kind: LinkKind) -> Exercise:
        return self.copy(nbytes)

    def download(self, nbytes: int, kind: LinkKind) -> Exercise:
        return Exercise(np.ones(nbytes, np.uint8).copy)
