"""Where round time went: medians and shares from recorded rounds, and nothing else."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from client.errors import StoreError
from client.record import Decision, NodeRecord
from server import compare
from server.compare import RoundRow
from server.store import NodeRound, RoundInfo, RunInfo, Store
from tests.fakes import placement

NAMES = ["node-0", "node-1"]


def record(node: str, wall_s: float, backend: str = "numpy") -> NodeRecord:
    return NodeRecord(
        partition=node,
        device={"backend": backend, "name": f"{backend} device"},
        placement=placement(backend, f"{backend}|device", 2),
        layout=backend,
        reason="the only one",
        decision=Decision("only", "the only one", {"planning_s": 0.0, "training_s": wall_s}),
        num_examples=30,
        loss=0.5,
        accuracy=0.75,
        wall_s=wall_s,
        phases={"decode": 0.25, "upload": 0.5, "train": wall_s - 1.0},
        unattributed_s=0.25,
        traffic={"compute_s": 6.0, "transfer_s": 1.0, "copy_s": 3.0, "sampled_steps": 2},
    )


def node_round(number: int, node: str, wall_s: float, **over: object) -> NodeRound:
    row = NodeRound(
        round=number,
        partition=node,
        node_id=2,
        task="train",
        status="ok",
        bytes_down=100,
        bytes_up=120,
        dispatch_to_reply_s=wall_s + 0.5,
        record=record(node, wall_s),
    )
    return replace(row, **over)  # type: ignore[arg-type]


def write_run(folder: Path, rows: list[NodeRound], whole: int = 3) -> Path:
    """A run's folder with its record; rounds 1 to ``whole`` are whole."""
    folder.mkdir(parents=True)
    info = RunInfo("tiny", {}, "/base", 7, {}, "2026-01-01")
    with Store.create(folder / "run.db", info) as store:
        for row in rows:
            store.add_node_round(row)
        for number in range(1, whole + 1):
            store.add_round(
                RoundInfo(number, 1.0, 0.5, 1.1, None, None, 2.0, 2, 0.1, f"r{number}", "00")
            )
    return folder


ROWS = [
    node_round(n, node, wall_s)
    for n, walls in ((1, (2.0, 4.0)), (2, (3.0, 5.0)), (3, (10.0, 6.0)))
    for node, wall_s in zip(NAMES, walls, strict=True)
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "first", ROWS)


@pytest.fixture
def rows(run: Path) -> list[RoundRow]:
    return compare.read_rounds(run)


def test_rows_are_what_was_recorded(rows: list[RoundRow]) -> None:
    assert [(r.round, r.node, r.wall_s) for r in rows] == [
        (r.round, r.partition, r.record.wall_s)  # type: ignore[union-attr]
        for r in ROWS
    ]
    assert rows[0] == RoundRow(
        run="first",
        round=1,
        node="node-0",
        device="numpy device",
        placement="numpy",
        reason="the only one",
        decision="only",
        decided="the only one",
        numbers={"planning_s": 0.0, "training_s": 2.0},
        num_examples=30,
        loss=0.5,
        phases={"decode": 0.25, "upload": 0.5, "train": 1.0},
        unattributed_s=0.25,
        wall_s=2.0,
        dispatch_to_reply_s=2.5,
        bytes_up=120,
        bytes_down=100,
        transfer_s=1.0,
        copy_s=3.0,
        compute_s=6.0,
        sampled_steps=2,
    )


def test_a_run_is_given_by_its_folder_or_its_record(run: Path) -> None:
    assert compare.read_rounds(run / "run.db") == compare.read_rounds(run)


def test_only_training_in_whole_rounds_counts(tmp_path: Path) -> None:
    others = [
        node_round(1, "node-2", 9.0, status="failed", record=None, error="lost"),
        node_round(1, "node-3", 9.0, status="rejected", error="not finite"),
        node_round(1, "node-0", 9.0, task="evaluate"),
        node_round(4, "node-0", 9.0),  # round 4 was interrupted
    ]
    run = write_run(tmp_path / "second", [*ROWS, *others])
    assert {r.wall_s for r in compare.read_rounds(run)} == {2.0, 3.0, 4.0, 5.0, 6.0, 10.0}


def test_a_run_without_a_whole_round_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "begun", ROWS, whole=0)
    with pytest.raises(StoreError, match="no round of this run is complete yet"):
        compare.read_rounds(run)


def test_medians_and_quartiles_by_node(rows: list[RoundRow]) -> None:
    zero, one = compare.group(rows, "node")
    assert (zero.node, one.node) == ("node-0", "node-1")
    assert (zero.rounds, one.rounds) == (3, 3)
    assert zero.wall_s == compare.Spread(median=3.0, low=2.5, high=6.5)
    assert one.wall_s == compare.Spread(median=5.0, low=4.5, high=5.5)
    assert zero.phases["train"].median == 2.0
    assert list(zero.phases) == ["decode", "upload", "train"]
    assert zero.network_and_queue_s.median == 0.5
    assert zero.bytes_up == 360


def test_shares_are_of_device_busy_time(rows: list[RoundRow]) -> None:
    [row] = compare.group(rows, "device")
    assert row.node == "2 nodes"
    assert row.transfer_share == pytest.approx(0.1)
    assert row.movement_share == pytest.approx(0.4)


def test_without_sampled_steps_shares_are_zero(rows: list[RoundRow]) -> None:
    bare = [replace(r, transfer_s=0.0, copy_s=0.0, compute_s=0.0) for r in rows]
    [row] = compare.group(bare, "device")
    assert (row.transfer_share, row.movement_share) == (0.0, 0.0)


def test_devices_and_runs_are_kept_apart(rows: list[RoundRow]) -> None:
    other = [replace(r, device="gpu", placement="opencl") for r in rows[:2]]
    third = [replace(r, run="third") for r in rows]
    found = compare.group([*rows, *other, *third], "device")
    assert [(g.run, g.placement, g.rounds) for g in found] == [
        ("first", "numpy", 6),
        ("first", "opencl", 2),
        ("third", "numpy", 6),
    ]


def test_a_node_that_changed_its_device_names_both(rows: list[RoundRow]) -> None:
    moved = [*rows[:3], replace(rows[4], device="gpu", placement="opencl")]
    zero = compare.group(moved, "node")[0]
    assert (zero.device, zero.placement) == ("numpy device, gpu", "numpy, opencl")


def test_runs_called_alike_are_kept_apart_and_none_counts_twice(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / parent / "run", ROWS) for parent in ("a", "b")]
    runs.append(write_run(tmp_path / "c", ROWS))
    rows = compare.read_runs([*runs, runs[0] / "run.db"])
    names = [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "c"]
    assert list(dict.fromkeys(r.run for r in rows)) == names
    assert len(rows) == 3 * len(ROWS)


def test_the_working_directory_has_a_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert {r.run for r in compare.read_runs([Path()])} == {"first"}
    assert {r.run for r in compare.read_rounds(Path("run.db"))} == {"first"}


def test_csv_has_a_line_for_each_node_and_round(rows: list[RoundRow], tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    compare.write_csv(path, rows)
    with path.open(newline="") as f:
        found = list(csv.DictReader(f))
    assert len(found) == len(rows)
    assert [(r["round"], r["node"], float(r["wall_s"])) for r in found] == [
        (str(r.round), r.node, r.wall_s) for r in rows
    ]
    assert float(found[0]["train_s"]) == 1.0
    assert float(found[0]["evaluate_s"]) == 0.0


def test_csv_that_cannot_be_written_is_one_line(rows: list[RoundRow], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        compare.write_csv(tmp_path / "none" / "rounds.csv", rows)


def text(rows: list[RoundRow], by: compare.By) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(compare.render(rows, by))
    return [line for line in capture.get().splitlines() if line.strip()]


def test_the_tables_show_rounds_and_phases(rows: list[RoundRow]) -> None:
    lines = text(rows, "node")
    assert lines[1].split()[:3] == ["node", "device", "on"]
    assert "run" not in lines[1].split()
    assert lines[3].split() == [
        *("node-0", "numpy", "device", "numpy", "3", "3000", "2500", "–", "6500", "8.3%"),
        *("500", "10.0%", "40.0%"),
    ]
    assert lines[4].split()[0] == "node-1"
    phases = [line.split() for line in lines if line.split()[0] == "node-0"][1:]
    assert [p[4] for p in phases] == ["decode", "upload", "train"]
    assert phases[1][5:] == ["500", "500", "–", "500", "16.7%"]


def test_several_runs_have_a_column_of_their_own(rows: list[RoundRow]) -> None:
    both = [*rows, *(replace(r, run="second") for r in rows)]
    _, head, _, *lines = text(both, "device")
    assert head.split()[0] == "run"
    assert [line.split()[0] for line in lines[:2]] == ["first", "second"]
