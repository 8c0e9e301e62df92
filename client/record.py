"""What a node reports of a round, beside weights and metrics: plain data, JSON on the wire."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from client.backends.figures import Traffic
from client.errors import ConfigError
from client.fields import parse
from client.timing import Timing


@dataclass(frozen=True)
class PlacedPart:
    """A run of unit-blocks [first, stop) on one processor, and its share of each batch."""

    backend: str
    device: str  # DeviceInfo.key
    threads: int
    first: int
    stop: int
    share: float = 1.0
    variants: tuple[tuple[str, str], ...] = ()  # (operation, kernel variant)


@dataclass(frozen=True)
class PlacedLayout:
    """The parts that a network ran in: one, several in a row, or several side by side."""

    parts: tuple[PlacedPart, ...]
    micro_batch: int = 0  # examples at once, where a batch went through in slices

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("parts: found none, needs at least one")


@dataclass(frozen=True)
class Placement:
    """Where the network ran in a round, in enough detail to repeat it bit by bit.

    ``trials``: (place in ``layouts``, training steps), one after the other; after them the first
    layout, the one that was kept, trained to the end of the round.
    """

    layouts: tuple[PlacedLayout, ...]
    trials: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.layouts:
            raise ConfigError("layouts: found none, needs at least one")
        for i, (layout, steps) in enumerate(self.trials):
            if not (0 <= layout < len(self.layouts) and steps > 0):
                raise ConfigError(
                    f"trials: found [{layout}, {steps}] at place {i}, needs the number of one of "
                    f"{len(self.layouts)} layouts, from 0, and a number of steps above 0"
                )

    @property
    def kept(self) -> PlacedLayout:
        """The layout that trained to the end of the round."""
        return self.layouts[0]

    def without_trials(self) -> Placement:
        """For a further round: the kept layout alone."""
        return Placement((self.kept,))


def cannot_be_repeated(recorded: Placement, here: Placement) -> str:
    """What differs of two placements, with its likely cause where that is kernel variants alone."""
    said = "the recorded placement cannot be repeated here"
    if _without_variants(recorded) != _without_variants(here):
        return f"{said}: recorded {recorded}, here {here}"
    before, now = _variants(recorded), _variants(here)
    differ = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    _, device, name = differ[0]
    return (
        f"{said}: {len(differ)} kernel variants differ, the first is that of {name} on "
        f"{device.partition('|')[0]}: recorded '{before.get(differ[0], 'none')}', here "
        f"'{now.get(differ[0], 'none')}'; kernels were probably tuned (pocketfed tune) between the "
        "run and now: set POCKETFED_CACHE to an empty folder where the run used the kernels that "
        "are shipped, else to the cache folder of the run"
    )


def _without_variants(placement: Placement) -> Placement:
    return replace(
        placement,
        layouts=tuple(
            replace(layout, parts=tuple(replace(part, variants=()) for part in layout.parts))
            for layout in placement.layouts
        ),
    )


def _variants(placement: Placement) -> dict[tuple[int, str, str], str]:
    """(layout, device's key, operation) -> kernel variant."""
    return {
        (number, part.device, name): variant
        for number, layout in enumerate(placement.layouts)
        for part in layout.parts
        for name, variant in part.variants
    }


@dataclass(frozen=True)
class Decision:
    """What was decided about the placement of a round, in a sentence, and by which numbers."""

    kind: Literal["only", "recorded", "plan", "keep", "try"]  # see docs/json.md
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


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
    layout: str = ""  # the kept one, as in "opencl [conv1..pool2] | numpy [fc1..fc3]"
    reason: str = ""  # why there
    decision: Decision | None = None  # of this round; none where nothing is trained
    measured: dict[str, dict[str, float]] = field(default_factory=dict)  # by layout; s
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
