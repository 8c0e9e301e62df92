"""What a person sees while a run goes on: one live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from client.errors import RoundError
from client.timing import on_phase
from server import compare, console
from server.explain import show
from server.observer import Observer, Result
from server.store import NodeRound, RoundInfo

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live


MAX_NAMES = 10
"""How many nodes that failed alike are named in a line."""


@contextmanager
def view() -> Iterator[Observer]:
    """An observer that shows what it is told, for as long as the context lasts."""
    out = console.console()
    if not out.is_terminal:
        with _told(PlainLines()) as lines:
            yield lines
        return
    from rich.live import Live

    with (
        Live(console=out, refresh_per_second=8, transient=True) as screen,
        _told(LiveView(screen)) as shown,
    ):
        yield shown


@contextmanager
def _told(lines: PlainLines) -> Iterator[PlainLines]:
    """Nodes of this process tell their phases; after Ctrl-C it is said how to go on, and where
    nodes of other machines failed a run too."""
    token = on_phase.set(lines.phase_began)
    try:
        yield lines
    except (KeyboardInterrupt, RoundError) as e:
        lines.tell_others_that_failed()
        if isinstance(e, KeyboardInterrupt) or lines.port is not None:
            lines.interrupted()
        raise
    finally:
        on_phase.reset(token)


class PlainLines(Observer):
    """A line per round, and one for everything out of the ordinary."""

    def __init__(self) -> None:
        self._out = console.console()
        self._rounds = 0
        self._folder: Path | None = None
        self._failed: dict[tuple[str, str | None], list[str]] = {}  # status, error -> more nodes
        self.port: int | None = None
        self._building_was_said = False

    def run_started(
        self, folder: Path, name: str, rounds: int, partitions: list[str], first_round: int
    ) -> None:
        self._rounds, self._folder = rounds, folder
        resumed = f", from round {first_round}" if first_round > 1 else ""
        self._line(f"{name}: {rounds} rounds, {len(partitions)} nodes{resumed}; {folder}")

    def phase_began(self, name: str) -> None:
        """Told by a node's clock, in this process."""
        if name == "build" and not self._building_was_said:
            self._building_was_said = True
            self._line("preparing devices: kernels are built and checked once for each model")

    def serving(self, address: str) -> None:
        self.port = int(address.rpartition(":")[2])
        self._line(f"nodes can join: pocketfed join --server {address} --data FILE.npz")

    def waiting(self, connected: int, wanted: int) -> None:
        self._line(f"{connected} of {wanted} nodes connected")

    def node_failed(self, row: NodeRound) -> None:
        """At once; of those that fail alike the first one alone, the others in one line later."""
        alike = self._failed.get((row.status, row.error))
        if alike is None:
            self._failed[row.status, row.error] = []
            self._line(f"round {row.round}: {row.partition}: {row.status}: {row.error}")
        else:
            alike.append(row.partition)

    def tell_others_that_failed(self) -> None:
        """At the end of a round, however that came."""
        for (status, _), names in self._failed.items():
            if names:
                more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
                self._line(f"{', '.join(names[:MAX_NAMES])}{more}: {status} in the same way")
        self._failed.clear()

    def round_finished(self, info: RoundInfo) -> None:
        self.tell_others_that_failed()
        self._line(_round_line(info, self._rounds))

    def note(self, kind: str, message: str, partition: str | None = None) -> None:
        self._line(f"{f'{partition}: ' if partition else ''}{kind}: {message}")

    def interrupted(self) -> None:
        """What was done stays in the run's folder, if there is one yet."""
        if self._folder is not None:
            command = "simulate" if self.port is None else f"serve --port {self.port}"
            self._line(f"to go on: pocketfed {command} --resume {quote(str(self._folder))}")

    def _line(self, text: str) -> None:
        self._out.print(text, soft_wrap=True)


def _round_line(info: RoundInfo, rounds: int) -> str:
    figures = [f"train loss {info.train_loss:.4f}"] if info.train_loss is not None else []
    if info.loss is not None:
        figures.append(console.figures(info.accuracy, info.loss))
    if info.node_accuracy is not None:
        figures.append(f"accuracy on the nodes {info.node_accuracy:.4f}")
    elif info.node_loss is not None:
        figures.append(f"loss on the nodes {info.node_loss:.4f}")
    return (
        f"round {info.round}/{rounds}: {', '.join(figures)}; "
        f"{info.replies} node{'s' if info.replies != 1 else ''}, {console.seconds(info.wall_s)}"
    )


FRAME = 7
"""Lines of the live view that are not a node's, and one for the cursor."""


@dataclass
class _NodeState:
    """A node's line in the live view."""

    state: str = "idle"
    device: str = ""
    phase: str = ""
    last: str = ""


class LiveView(PlainLines):
    """The round, each node's state, device and phase, how good the model is; notes scroll above."""

    def __init__(self, screen: Live) -> None:
        super().__init__()
        self._out = screen.console
        self._screen = screen
        self._title = "starting"
        self._nodes: dict[str, _NodeState] = {}
        self._working: str | None = None
        self._rounds_done: list[RoundInfo] = []

    def run_started(
        self, folder: Path, name: str, rounds: int, partitions: list[str], first_round: int
    ) -> None:
        super().run_started(folder, name, rounds, partitions, first_round)
        self._nodes = {partition: _NodeState() for partition in partitions}
        self._refresh()

    def nodes_joined(self, partitions: list[str]) -> None:
        for partition in partitions:
            self._nodes.setdefault(partition, _NodeState())
        self._refresh()

    def round_started(self, number: int, rounds: int, partitions: list[str]) -> None:
        self._title = f"round {number} of {rounds}"
        for node in self._nodes.values():
            node.state, node.phase = "not in this round", ""
        self._refresh()

    def node_dispatched(self, number: int, partition: str, task: str) -> None:
        self._nodes[partition].state = f"waits to {task}"
        self._refresh()

    def node_started(self, partition: str) -> None:
        self._working = partition
        self._nodes[partition].state = "works"
        self._refresh()

    def phase_began(self, name: str) -> None:
        """Told by the node's clock, in this process."""
        if self._working is not None:
            self._nodes[self._working].phase = name
            self._refresh()

    def node_finished(self, row: NodeRound) -> None:
        node, record = self._nodes[row.partition], row.record
        node.state, node.phase = "done", ""
        if record is not None:
            layout = record.layout or record.device.get("backend", "unknown")
            node.device = _device(str(layout), str(record.device.get("name", "unknown")))
            node.last = f"{console.seconds(record.wall_s)}, loss {record.loss:.4f}"
        self._refresh()

    def node_failed(self, row: NodeRound) -> None:
        super().node_failed(row)
        node = self._nodes[row.partition]
        node.state, node.phase = row.status, ""
        self._refresh()

    def round_finished(self, info: RoundInfo) -> None:
        super().round_finished(info)
        self._rounds_done.append(info)

    def _refresh(self) -> None:
        self._screen.update(self._draw())

    def _draw(self) -> Group:
        from rich.console import Group

        columns = ["node", "state", "device", "phase", "last round"]
        nodes, more = self._shown()
        rows = [[n, s.state, s.device, s.phase, s.last] for n, s in nodes]
        last = self._rounds_done[-10:]
        losses = any(info.accuracy is None and info.loss is not None for info in last)
        values = [info.loss if losses else info.accuracy for info in last]
        shown = " ".join(f"{v:.3f}" for v in values if v is not None) or "–"
        table = console.table(self._title, columns, rows, cut=("device",))
        return Group("", table, *more, f"{'loss' if losses else 'accuracy'} so far: {shown}")

    def _shown(self) -> tuple[list[tuple[str, _NodeState]], list[str]]:
        """The nodes that the screen has room for, and a line on the others."""
        nodes = list(self._nodes.items())
        room = max(1, self._out.height - FRAME)
        if len(nodes) <= room:
            return nodes, []
        names = list(self._nodes)
        at = names.index(self._working) if self._working in names else 0
        first = max(0, min(at - room // 2, len(nodes) - room))
        rest = Counter(s.state for _, s in (*nodes[:first], *nodes[first + room :]))
        told = ", ".join(f"{n} {state}" for state, n in rest.items())
        return nodes[first : first + room], [f"and {len(nodes) - room} more: {told}"]


def _device(layout: str, name: str) -> str:
    """Where a network is; of several parts, the layout alone names their devices' backends."""
    several = " | " in layout or " + " in layout
    return layout if several else f"{layout}: {console.short(name)}"


def summary(result: Result, explain: bool = False) -> None:
    """At the end: where each node's time went, the slowest node, and where it all lies.

    ``explain``: and why, decision by decision.
    """
    rows = compare.read_rounds(result.run)
    nodes: dict[str, list[compare.RoundRow]] = {}
    for row in rows:
        nodes.setdefault(row.node, []).append(row)
    out = console.console()
    if nodes:
        out.print()
        out.print(console.table(*_node_table(nodes), fold=("why",), cut=("device",)))
        out.print()
        out.print(_slowest_line(nodes), soft_wrap=not out.is_terminal)
    for name, replies_s in compare.read_foreign(result.run).items():
        middle = console.seconds(statistics.median(replies_s))
        text = f"{name}: {len(replies_s)} rounds, {middle} from dispatch to reply; phases unknown"
        out.print(text, soft_wrap=True)
    if explain:
        show(rows)
        out.print()
    if result.final_loss is not None:
        out.print(
            f"{console.figures(result.final_accuracy, result.final_loss)} "
            f"after {_rounds_done(result)}"
        )
    out.print(f"run: {result.run}", soft_wrap=True)


def _rounds_done(result: Result) -> str:
    before, wall = result.resumed_from_round or 0, console.seconds(result.wall_s)
    if before >= result.rounds:
        return f"{result.rounds} rounds, all done before"
    if before:
        return f"{result.rounds} rounds, the last {result.rounds - before} of them in {wall}"
    return f"{result.rounds} rounds in {wall}"


TRANSFER = ("upload", "download")


def _split(row: compare.RoundRow) -> tuple[float, float, float]:
    """(compute, transfer, other) of a node's round in seconds."""
    compute_s = row.phases.get("train", 0.0)
    transfer_s = sum(row.phases.get(p, 0.0) for p in TRANSFER)
    return compute_s, transfer_s, row.wall_s - compute_s - transfer_s


def _node_table(
    nodes: dict[str, list[compare.RoundRow]],
) -> tuple[str, list[str], list[list[str]]]:
    columns = ["node", "examples", "device", "compute s", "transfer s", "other s", "total s"]
    cells = []
    for name, rows in nodes.items():
        sums = [sum(values) for values in zip(*map(_split, rows), strict=True)]
        last = rows[-1]
        cells.append(
            [
                name,
                str(last.num_examples),
                _device(last.placement, last.device),
                *(f"{s:.3f}" for s in (*sums, sum(sums))),
                f"{last.loss:.4f}",
                last.reason,
            ]
        )
    return "where each node's time went, all rounds together", [*columns, "loss", "why"], cells


def _slowest_line(nodes: dict[str, list[compare.RoundRow]]) -> str:
    totals = {name: sum(r.wall_s for r in rows) for name, rows in nodes.items()}
    slowest = max(totals, key=lambda name: totals[name])
    phases: dict[str, float] = {}
    for row in nodes[slowest]:
        for phase, phase_s in row.phases.items():
            phases[phase] = phases.get(phase, 0.0) + phase_s
    most = sorted(phases.items(), key=lambda item: -item[1])[:3]
    spent = ", ".join(f"{p} {s:.3f} s ({s / totals[slowest]:.0%})" for p, s in most)
    return f"slowest node: {slowest}, {totals[slowest]:.3f} s in all: {spent}"
