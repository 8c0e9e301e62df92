"""Why nodes trained where they did: a sentence for each decision, with its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from server import console

if TYPE_CHECKING:
    from server.compare import RoundRow


def sentences(rows: Iterable[RoundRow]) -> list[str]:
    """Node by node, in order of rounds; rounds that went on as before are put together."""
    nodes: dict[tuple[str, str], list[RoundRow]] = {}
    for row in rows:
        nodes.setdefault((row.run, row.node), []).append(row)
    several = len({run for run, _ in nodes}) > 1
    told = []
    for (run, node), of_node in nodes.items():
        name = f"{run}: {node}" if several else node
        for members in _alike(of_node):
            told.append(f"{name}, {_rounds(members)}: {_sentence(members[-1])}")
    return told


def _alike(rows: list[RoundRow]) -> list[list[RoundRow]]:
    """Runs of rounds with one decision: those that tried something stand alone."""

    def key(numbered: tuple[int, RoundRow]) -> tuple[str, str, int]:
        place, row = numbered
        return row.decision, row.placement, place if row.decision in ("plan", "try") else -1

    return [[row for _, row in members] for _, members in groupby(enumerate(rows), key)]


def _rounds(rows: list[RoundRow]) -> str:
    first, last = rows[0].round, rows[-1].round
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def _sentence(row: RoundRow) -> str:
    """What was decided and why; and what planning took of the node's training up to then."""
    training_s, planning_s = row.numbers.get("training_s"), row.numbers.get("planning_s")
    text = f"{row.decision}: {row.decided or 'nothing is recorded of it'}"
    if not training_s or planning_s is None:
        return text
    share = planning_s / (training_s + planning_s)
    return (
        f"{text} (planning up to then {console.seconds(planning_s)} beside "
        f"{console.seconds(training_s)} of training, {share:.1%})"
    )


def show(rows: Iterable[RoundRow]) -> None:
    """Print them, a line each."""
    out = console.console()
    out.print()
    for line in sentences(rows):
        out.print(line, soft_wrap=True)
