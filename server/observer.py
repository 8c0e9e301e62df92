"""Who watches a run: a live view, a log. The round loop itself never prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from server.store import NodeRound, RoundInfo


@dataclass(frozen=True)
class Result:
    """A run that came to its end. ``final_*``: the global model on the central examples."""

    run: Path
    rounds: int
    final_accuracy: float | None
    final_loss: float | None
    wall_s: float
    model_file: Path
    resumed_from_round: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain values: paths as text."""
        return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self).items()}


class Observer:
    """Told of everything as it happens; does nothing. A view overrides what it shows."""

    def run_started(
        self, folder: Path, name: str, rounds: int, partitions: list[str], first_round: int
    ) -> None:
        """The run's folder is ready; ``first_round`` is above 1 when it is resumed."""

    def serving(self, address: str) -> None:
        """Nodes can connect to ``address`` now."""

    def waiting(self, connected: int, wanted: int) -> None:
        """The run waits for nodes, before it begins or between rounds."""

    def nodes_joined(self, partitions: list[str]) -> None:
        """Nodes that were not there when the run began."""

    def round_started(self, number: int, rounds: int, partitions: list[str]) -> None:
        """``partitions`` were sampled for round ``number`` of ``rounds``."""

    def node_dispatched(self, number: int, partition: str, task: str) -> None:
        """The message to a node was sent; ``task`` is "train" or "evaluate"."""

    def node_started(self, partition: str) -> None:
        """The node works now (only where the engine can see that)."""

    def node_finished(self, row: NodeRound) -> None:
        """A node's reply arrived and will be aggregated."""

    def node_failed(self, row: NodeRound) -> None:
        """A node failed, its reply was rejected, or it is late; ``row.error`` says why."""

    def round_finished(self, info: RoundInfo) -> None:
        """A round is whole, its checkpoint written."""

    def run_finished(self, result: Result) -> None:
        """The last round is whole and the model file written."""

    def note(self, kind: str, message: str, partition: str | None = None) -> None:
        """Something a researcher should know; recorded as an event too."""
