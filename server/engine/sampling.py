"""Which nodes take part, decided by seed and round alone.

Flower's strategies sample with Python's ``random`` from the node ids that a Grid gives them. Node
ids differ from run to run, and the generator is the process's. So a strategy sees the ids in the
order of the nodes' partition names, and draws from a generator keyed by seed and round.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flwr.serverapp import Grid

from client.random import key64
from server.engine.delegate import DelegatingGrid


@contextmanager
def keyed_random(*key: str | int) -> Iterator[None]:
    """Python's generator starts from ``key`` inside, and goes on as if nothing were after."""
    state = random.getstate()
    random.seed(key64(*key))
    try:
        yield
    finally:
        random.setstate(state)


class OrderedGrid(DelegatingGrid):
    """A Grid whose nodes are those in ``names`` (node id -> partition name), in their order."""

    def __init__(self, grid: Grid, names: Mapping[int, str]) -> None:
        super().__init__(grid)
        self._names = names

    def get_node_ids(self) -> list[int]:
        """Ids of the nodes, in the order of their names."""
        return sorted(self._names, key=lambda node_id: self._names[node_id])
