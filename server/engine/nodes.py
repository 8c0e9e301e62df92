"""The nodes of a run, as an engine brings them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid


@dataclass
class Nodes:
    """The way to the nodes, and who they are.

    ``names``: node id -> partition name. ``wanted``: how many the federation has, when all are
    there. ``contexts``: by node id, where the engine has them; their state goes into checkpoints.
    ``refresh``: the names of the nodes that are there now, where they come and go. ``foreign``:
    names of those that run another ClientApp than ours, whose replies have no record.
    """

    grid: Grid
    names: Mapping[int, str]
    wanted: int
    contexts: Mapping[int, Context] = field(default_factory=dict)
    refresh: Callable[[], dict[int, str]] | None = None
    foreign: Collection[str] = ()

    def states(self) -> dict[str, RecordDict]:
        """Partition name -> a node's state, for those that have any."""
        return {self.names[i]: c.state for i, c in self.contexts.items() if c.state}

    def restore(self, states: Mapping[str, RecordDict]) -> None:
        """Give nodes the state that they had."""
        by_name = {self.names[i]: context for i, context in self.contexts.items()}
        for name, state in states.items():
            by_name[name].state = state
