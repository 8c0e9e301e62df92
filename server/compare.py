"""`pocketfed compare`: where round time went, device by device, within and between runs.

All seconds are measured. ``wall_s`` and ``phases`` are on the node's clock and do not overlap;
``dispatch_to_reply_s`` is on the server's. Shares of transfer and movement are of device-busy
time in the steps that were timed command by command: transfer is what passed between host and
device, movement is transfer and every command on the device whose kernel does no arithmetic.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from client.errors import StoreError
from client.timing import PHASES
from server import console
from server.bench.measure import quartiles
from server.store import NodeRound, Store

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


@dataclass(frozen=True)
class RoundRow:
    """One node's training in one whole round."""

    run: str
    round: int
    node: str
    device: str
    placement: str
    reason: str
    decision: str
    decided: str
    numbers: dict[str, float]
    num_examples: int
    loss: float
    phases: dict[str, float]
    unattributed_s: float
    wall_s: float
    dispatch_to_reply_s: float
    bytes_up: int
    bytes_down: int
    transfer_s: float
    copy_s: float
    compute_s: float
    sampled_steps: int


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class GroupRow:
    """All rounds of a node, or of all nodes on a device, in one run."""

    run: str
    node: str
    device: str
    placement: str
    rounds: int
    wall_s: Spread
    phases: dict[str, Spread]
    unattributed_s: Spread
    network_and_queue_s: Spread
    transfer_share: float
    movement_share: float
    bytes_up: int
    bytes_down: int


def read_runs(runs: Iterable[Path]) -> list[RoundRow]:
    """The rows of several runs; each named by its folder, by its path where two are called alike.

    A run that is given twice counts once.
    """
    paths = list(dict.fromkeys(_database(run).resolve() for run in runs))
    folders = [path.parent for path in paths]
    names = [folder.name for folder in folders]
    return [
        row
        for path, folder in zip(paths, folders, strict=True)
        for row in read_rounds(path, folder.name if names.count(folder.name) == 1 else str(folder))
    ]


def _database(run: Path) -> Path:
    return run / "run.db" if run.is_dir() else run


def read_rounds(run: Path, name: str | None = None) -> list[RoundRow]:
    """The rows of one run, from its folder or its run.db; StoreError if it has no whole round."""
    path = _database(run)
    shown = path.resolve().parent.name if name is None else name
    with Store.read(path) as store:
        whole = store.node_rounds()
    if not whole:
        raise StoreError(f"{path}: no round of this run is complete yet")
    return [_round_row(shown, r) for r in whole if _trained(r)]


def read_foreign(run: Path) -> dict[str, list[float]]:
    """Seconds from dispatch to reply of nodes that run another ClientApp, and say no more."""
    with Store.read(_database(run)) as store:
        rows = [r for r in store.node_rounds() if r.status == "ok" and r.record is None]
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.task == "train":
            found.setdefault(row.partition, []).append(row.dispatch_to_reply_s or 0.0)
    return found


def _trained(row: NodeRound) -> bool:
    return row.task == "train" and row.status == "ok" and row.record is not None


def _round_row(run: str, row: NodeRound) -> RoundRow:
    record = row.record
    assert record is not None
    return RoundRow(
        run=run,
        round=row.round,
        node=row.partition,
        device=str(record.device.get("name", "unknown")),
        placement=record.layout or "unknown",
        reason=record.reason,
        decision=record.decision.kind if record.decision else "unknown",
        decided=record.decision.reason if record.decision else "",
        numbers=record.decision.numbers if record.decision else {},
        num_examples=record.num_examples,
        loss=record.loss,
        phases=record.phases,
        unattributed_s=record.unattributed_s,
        wall_s=record.wall_s,
        dispatch_to_reply_s=row.dispatch_to_reply_s or 0.0,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        transfer_s=record.traffic.get("transfer_s", 0.0),
        copy_s=record.traffic.get("copy_s", 0.0),
        compute_s=record.traffic.get("compute_s", 0.0),
        sampled_steps=int(record.traffic.get("sampled_steps", 0)),
    )


By = Literal["node", "device"]


def group(rows: Iterable[RoundRow], by: By) -> list[GroupRow]:
    """Rows put together by run and node, or by run and device (with its placement)."""
    groups: dict[tuple[str, ...], list[RoundRow]] = {}
    for row in rows:
        key = (row.run, row.node) if by == "node" else (row.run, row.device, row.placement)
        groups.setdefault(key, []).append(row)
    return [_group_row(members, by) for members in groups.values()]


def _group_row(rows: list[RoundRow], by: By) -> GroupRow:
    def spread(value: Callable[[RoundRow], float]) -> Spread:
        low, median, high = quartiles([value(r) for r in rows])
        return Spread(median, low, high)

    names = [p for p in PHASES if any(p in r.phases for r in rows)]
    transfer, copy = sum(r.transfer_s for r in rows), sum(r.copy_s for r in rows)
    busy = transfer + copy + sum(r.compute_s for r in rows)
    nodes = dict.fromkeys(r.node for r in rows)
    return GroupRow(
        run=rows[0].run,
        node=rows[0].node if by == "node" else f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}",
        device=", ".join(dict.fromkeys(r.device for r in rows)),
        placement=", ".join(dict.fromkeys(r.placement for r in rows)),
        rounds=len(rows),
        wall_s=spread(lambda r: r.wall_s),
        phases={p: spread(lambda r, p=p: r.phases.get(p, 0.0)) for p in names},  # type: ignore[misc]
        unattributed_s=spread(lambda r: r.unattributed_s),
        network_and_queue_s=spread(lambda r: r.dispatch_to_reply_s - r.wall_s),
        transfer_share=transfer / busy if busy else 0.0,
        movement_share=(transfer + copy) / busy if busy else 0.0,
        bytes_up=sum(r.bytes_up for r in rows),
        bytes_down=sum(r.bytes_down for r in rows),
    )


def as_json(rows: list[RoundRow]) -> dict[str, Any]:
    """The JSON object of `pocketfed compare`."""
    return {
        "rounds": [asdict(r) for r in rows],
        "nodes": [asdict(g) for g in group(rows, "node")],
        "devices": [asdict(g) for g in group(rows, "device")],
    }


def write_csv(path: Path, rows: list[RoundRow]) -> None:
    """One line per node and round, a column per phase."""
    try:
        with path.open("w", newline="") as f:
            names = [n for n in RoundRow.__dataclass_fields__ if n not in ("phases", "numbers")]
            writer = csv.writer(f)
            writer.writerow([*names, *(f"{p}_s" for p in PHASES)])
            for r in rows:
                phases = [r.phases.get(p, 0.0) for p in PHASES]
                writer.writerow([*(getattr(r, n) for n in names), *phases])
    except OSError as e:
        raise StoreError(f"{path}: cannot be written: {e.strerror}") from None


def render(rows: list[RoundRow], by: By) -> Group:
    """Two tables of medians: the rounds of each group, and the phases they were made of."""
    from rich.console import Group

    groups = group(rows, by)
    return Group(_rounds_table(groups, by), "", _phases_table(groups, by))


def _rounds_table(groups: list[GroupRow], by: By) -> Table:
    columns = [*_name_columns(groups, by), "rounds", "round ms", "quartiles", "unattributed"]
    columns += ["network, queue ms", "transfer", "movement"]
    cells = [
        [
            *_name_cells(g, groups),
            str(g.rounds),
            _ms(g.wall_s.median),
            f"{_ms(g.wall_s.low)} – {_ms(g.wall_s.high)}",
            f"{g.unattributed_s.median / g.wall_s.median:.1%}",
            _ms(g.network_and_queue_s.median),
            f"{g.transfer_share:.1%}",
            f"{g.movement_share:.1%}",
        ]
        for g in groups
    ]
    title = "round time on the node's clock, medians; transfer, movement: of device-busy time"
    return console.table(title, columns, cells, cut=("device",), keys=_keys(groups))


def _phases_table(groups: list[GroupRow], by: By) -> Table:
    columns = [*_name_columns(groups, by), "phase", "ms", "quartiles", "of the round"]
    cells = [
        [
            *_name_cells(g, groups),
            phase,
            _ms(spread.median),
            f"{_ms(spread.low)} – {_ms(spread.high)}",
            f"{spread.median / g.wall_s.median:.1%}",
        ]
        for g in groups
        for phase, spread in g.phases.items()
    ]
    title, keys = "phases of a round, medians", len(_name_columns(groups, by)) + 1
    return console.table(title, columns, cells, cut=("device",), keys=keys)


def _name_columns(groups: list[GroupRow], by: By) -> list[str]:
    several = len({g.run for g in groups}) > 1
    return [*(["run"] if several else []), "node" if by == "node" else "nodes", "device", "on"]


def _keys(groups: list[GroupRow]) -> int:
    """How many of the columns of names tell the rows apart."""
    runs = {g.run for g in groups}
    alike = len({(g.run, g.node) for g in groups}) < len(groups)
    return (len(runs) > 1) + (3 if alike else 1)


def _name_cells(g: GroupRow, groups: list[GroupRow]) -> list[str]:
    several = len({other.run for other in groups}) > 1
    return [*([g.run] if several else []), g.node, console.short(g.device), g.placement]


def _ms(value_s: float) -> str:
    ms = value_s * 1e3
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"
