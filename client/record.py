"""What a node reports of a round, beside weights and metrics: plain data, JSON on the wire."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from typing import Any

from client.backends.base import Traffic
from client.errors import ConfigError, PocketfedError
from client.fields import convert, describe, join, parse
from client.timing import Timing


@dataclass(frozen=True)
class Placement:
    """Where the network ran, in enough detail to repeat it bit by bit."""

    backend: str
    device: str  # DeviceInfo.key
    threads: int
    variants: tuple[tuple[str, str], ...] = ()  # (operation, kernel variant)


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
    accuracy: float = 0.0
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
    """A recorded placement; PocketfedError if the text is none."""
    try:
        value = json.loads(text)
        value["variants"] = [list(v) for v in value.get("variants", [])]
    except (ValueError, TypeError, AttributeError, KeyError):
        raise PocketfedError(f"recorded placement: not readable: {text[:80]!r}") from None
    return parse(Placement, value, "recorded placement")


def record_from_json(text: str) -> NodeRecord:
    """A node's record from its JSON; ConfigError says what does not fit."""
    where = "record"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: is not JSON: {text[:60]!r}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {describe(value)}, needs a mapping")
    hints = typing.get_type_hints(NodeRecord)
    names = [f.name for f in dataclasses.fields(NodeRecord)]
    for name in names:
        if name not in value:
            raise ConfigError(f"{where}: the key '{name}' is missing")
    events = value.pop("events")
    if not isinstance(events, list):
        raise ConfigError(f"{where}.events: found {describe(events)}, needs a list")
    values = {n: convert(value[n], hints[n], f"{where}.{n}") for n in names if n != "events"}
    for name in ("phases", "traffic"):
        values[name] = _numbers(value[name], f"{where}.{name}")
    unknown = set(values["traffic"]) - set(Traffic.__dataclass_fields__)
    if unknown:
        raise ConfigError(f"{where}.traffic: unknown {', '.join(sorted(unknown))}")
    values["measured"] = {
        key: _numbers(figures, f"{where}.measured.{key}")
        for key, figures in value["measured"].items()
    }
    return NodeRecord(
        events=[parse(Event, e, f"{where}.events[{i}]") for i, e in enumerate(events)], **values
    )


def _numbers(value: Any, where: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: found {describe(value)}, needs a mapping")
    return {key: convert(v, float, join(where, key)) for key, v in value.items()}
