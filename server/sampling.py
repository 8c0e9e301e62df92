"""Which nodes take part, decided by seed and round alone.

Flower's strategies sample with Python's ``random`` from the node ids that a Grid gives them. Node
ids differ from run to run, and the generator is the process's. So a strategy sees the ids in the
order of the nodes' partition names, and draws from a generator keyed by seed and round.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from client.random import key64


@contextmanager
def keyed_random(*key: str | int) -> Iterator[None]:
    """Python's generator starts from ``key`` inside, and goes on as if nothing were after."""
    state = random.getstate()
    random.seed(key64(*key))
    try:
        yield
    finally:
        random.setstate(state)


class OrderedGrid(Grid):
    """A Grid whose node ids come in the order of ``names`` (node id -> partition name)."""

    def __init__(self, grid: Grid, names: Mapping[int, str]) -> None:
        self._grid = grid
        self._names = names

    def get_node_ids(self) -> list[int]:
        """Ids of the nodes that are there and have a name, in the order of their names."""
        there = (node_id for node_id in self._grid.get_node_ids() if node_id in self._names)
        return sorted(there, key=lambda node_id: self._names[node_id])

    def set_run(self, run: Run) -> None:
        """As the Grid beneath."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """As the Grid beneath."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the Grid beneath."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the Grid beneath."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the Grid beneath."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As the Grid beneath."""
        return self._grid.send_and_receive(messages, timeout=timeout)
