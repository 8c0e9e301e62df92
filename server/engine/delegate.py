"""A Grid on top of another one: everything passes through; a subclass changes what it must."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class DelegatingGrid(Grid):
    """See the module."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        """As the Grid beneath."""
        return self._grid.get_node_ids()

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
