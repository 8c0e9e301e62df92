"""Sentences on decisions: which rounds they put together, and their numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from server import compare, explain
from server.compare import RoundRow
from tests.unit.test_compare import node_round, write_run


@pytest.fixture
def row(tmp_path: Path) -> RoundRow:
    run = write_run(tmp_path / "first", [node_round(1, "node-0", 2.0)], whole=1)
    return compare.read_rounds(run)[0]


def at(row: RoundRow, number: int, decision: str, decided: str, **numbers: float) -> RoundRow:
    return replace(row, round=number, decision=decision, decided=decided, numbers=numbers)


def test_rounds_that_went_on_are_one_sentence_and_trials_stand_alone(row: RoundRow) -> None:
    rows = [
        at(row, 1, "plan", "a 1 s, b 2 s; so a", planning_s=0.5, training_s=9.5),
        at(row, 2, "keep", "a takes 1.00 ms"),
        at(row, 3, "keep", "a takes 1.01 ms", planning_s=0.5, training_s=49.5),
        at(row, 4, "try", "a takes 3.00 ms: held against b"),
        replace(at(row, 5, "keep", "b takes 2.00 ms"), placement="b"),
    ]
    assert explain.sentences(rows) == [
        "node-0, round 1: plan: a 1 s, b 2 s; so a "
        "(planning up to then 500.0 ms beside 9.50 s of training, 5.0%)",
        "node-0, rounds 2 to 3: keep: a takes 1.01 ms "
        "(planning up to then 500.0 ms beside 49.50 s of training, 1.0%)",
        "node-0, round 4: try: a takes 3.00 ms: held against b",
        "node-0, round 5: keep: b takes 2.00 ms",
    ]


def test_nodes_and_runs_are_told_apart(row: RoundRow) -> None:
    other = replace(row, node="node-1")
    told = explain.sentences([row, other, at(row, 2, "only", "the only one")])
    assert [line.split(":")[0] for line in told] == ["node-0, rounds 1 to 2", "node-1, round 1"]
    told = explain.sentences([row, replace(row, run="second")])
    assert [line.split(",")[0] for line in told] == ["first: node-0", "second: node-0"]
