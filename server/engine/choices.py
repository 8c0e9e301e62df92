"""Recorded placements that nodes are asked to repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from client.record import placement_from_json


@dataclass
class Choices:
    """Recorded placements that nodes are asked to repeat: (round, partition) -> JSON.

    Repeating a run (``all_rounds``), each node of each round gets its recorded placement, and who
    has none does not take part. Going on with a run, recorded rounds that are done again are
    repeated; after them, a node is told its last layout once and decides for itself from then
    on, as it would have done in a run that never stopped.
    """

    recorded: Mapping[tuple[int, str], str] = field(default_factory=dict)
    all_rounds: bool = False
    _told: set[str] = field(default_factory=set)

    def takes_part(self, number: int, partition: str) -> bool:
        """Does the node train in this round?"""
        return not self.all_rounds or (number, partition) in self.recorded

    def of(self, number: int, partition: str) -> str:
        """JSON of the placement to repeat, or an empty text."""
        exact = self.recorded.get((number, partition))
        if exact is None and not self.all_rounds and partition not in self._told:
            earlier = [n for n, p in self.recorded if p == partition and n < number]
            if earlier:
                exact = _kept(self.recorded[max(earlier), partition])
        self._told.add(partition)
        return exact or ""


def _kept(recorded: str) -> str:
    """What of a round's placement is meant for a further one: its trials are not done again."""
    return json.dumps(asdict(placement_from_json(recorded).without_trials()))
