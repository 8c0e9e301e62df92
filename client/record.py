"""What a node reports of a round, beside weights and metrics: plain data, JSON on the wire."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from client.backends.figures import Traffic
from client.errors import ConfigError
from client.fields import parse
from client.timing import Timing


@dataclass(frozen=True)
class Placement:
    """Where the network ran, in enough detail to repeat it bit by bit."""

    backend: str
    device: str  # DeviceInfo.key
    threads: int
    variants: tuple[tuple[str, str], ...] = ()  # (operation, kernel variant)
    micro_batch: int = 0  # examples at once, where a batch went through in slices


@dataclass(frozen=True)
class Event:
    """Something a researcher should know: a fallback, a refused device, a changed placement."""

    kind: str
    message: str


@dataclass
class NodeRecord:
    """One node's round. Seconds on the node's own clock, bytes between its host and its device."""

    partition: str
    device: dict[str, Any] = field(default_factory=dict)
    placement: Placement | None = None
    reason: str = ""
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    num_examples: int = 0
    loss: float = 0.0
    accuracy: float | None = None  # none where the loss knows no right and wrong
    wall_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    unattributed_s: float = 0.0
    traffic: dict[str, float] = field(default_factory=dict)
    launches: int = 0  # of one training step
    peak_nbytes: int = 0  # planned on the device: parameters, activations, data
    events: list[Event] = field(default_factory=list)

    def set_timing(self, timing: Timing) -> None:
        """The round's clock."""
        self.wall_s, self.phases = timing.wall_s, timing.phases
        self.unattributed_s = timing.unattributed_s

    def set_traffic(self, traffic: Traffic) -> None:
        """The device's counters over this round."""
        self.traffic = dataclasses.asdict(traffic)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def placement_from_json(text: str) -> Placement:
    """A recorded placement; ConfigError if the text is none."""
    where = "recorded placement"
    return parse(Placement, _read(text, where), where)


def record_from_json(text: str) -> NodeRecord:
    """A node's record from its JSON; ConfigError says what is missing or does not fit."""
    where = "reply: record"
    value = _read(text, where)
    record = parse(NodeRecord, value, where)
    missing = [f.name for f in dataclasses.fields(NodeRecord) if f.name not in value]
    if missing:
        raise ConfigError(f"{where}: the key '{missing[0]}' is missing")
    unknown = set(record.traffic) - set(Traffic.__dataclass_fields__)
    if unknown:
        raise ConfigError(f"{where}.traffic: unknown {', '.join(sorted(unknown))}")
    return record


def _read(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: is not JSON: {text[:60]!r}") from None
