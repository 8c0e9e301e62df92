"""run.db: what is written is read back, nothing is changed, and damage is one line."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from client.errors import StoreError
from client.record import Decision, Event, NodeRecord, PlacedLayout, PlacedPart, Placement
from server.store import NodeRound, RoundInfo, RunInfo, Store

RUN = RunInfo("tiny", {"name": "tiny", "seed": 7}, "/base", 7, {"python": "3.11"}, "2026-01-01")


def placement(threads: int = 1) -> Placement:
    kept, tried = (
        PlacedPart("opencl", "opencl|PoCL|cpu", threads, 0, 2, share, (("gemm", "tile6x4"),))
        for share in (1.0, 0.7)
    )
    other = PlacedPart("numpy", "numpy|cpu", 1, 0, 2, 0.3)
    return Placement((PlacedLayout((kept,), 4), PlacedLayout((tried, other))), ((1, 4), (0, 4)))


def record(partition: str, threads: int = 1) -> NodeRecord:
    return NodeRecord(
        partition=partition,
        device={"backend": "opencl", "name": "cpu", "remarks": ["old compiler"]},
        placement=placement(threads),
        layout="opencl",
        reason="faster: 2 ms against 3 ms",
        decision=Decision("plan", "two layouts were timed", {"budget_s": 0.5, "spent_s": 0.25}),
        measured={"numpy": {"step_s": 0.003, "round_s": 0.1}},
        num_examples=41,
        loss=0.5,
        accuracy=0.75,
        wall_s=1.25,
        phases={"decode": 0.25, "train": 1.0},
        unattributed_s=0.0,
        traffic={"upload_nbytes": 10, "download_nbytes": 11, "compute_s": 0.5},
        launches=17,
        peak_nbytes=1 << 33,
    )


def node_round(number: int, partition: str, **more: object) -> NodeRound:
    values: dict[str, object] = {
        "round": number,
        "partition": partition,
        "node_id": 2**63 + 5,  # Flower's ids are unsigned 64-bit numbers
        "task": "train",
        "status": "ok",
        "bytes_down": 100,
        "bytes_up": 120,
        "dispatch_to_reply_s": 1.5,
        "record": record(partition),
    }
    return NodeRound(**{**values, **more})  # type: ignore[arg-type]


def round_info(number: int, accuracy: float = 0.5) -> RoundInfo:
    return RoundInfo(number, 1.0, accuracy, 1.1, None, None, 2.0, 2, 0.1, f"r{number}", "00")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    ok, failed = node_round(1, "a"), node_round(1, "b", status="failed", error="x", record=None)
    late = node_round(1, "c", status="late", error="y", record=None, dispatch_to_reply_s=None)
    with Store.create(path, RUN) as store:
        store.add_nodes({2: "a", 3: "b"})
        for row in (ok, failed, late):
            store.add_node_round(row)
        store.add_round(round_info(1))
        store.add_event("fallback", "no OpenCL here", 1, "a")
    with Store.read(path) as store:
        assert store.run() == RUN
        assert store.node_rounds() == [ok, failed, late]
        assert store.rounds() == [round_info(1)]
        assert [(e.kind, e.message, e.round, e.partition) for e in store.events()] == [
            ("fallback", "no OpenCL here", 1, "a")
        ]
        session = store.sessions()[0]
        assert (session.resumed_from_round, session.pid) == (None, os.getpid())
        assert session.versions == RUN.versions
    assert ok.network_and_queue_s == 0.25
    assert late.network_and_queue_s is None


def test_events_of_a_node_are_recorded_with_its_round(tmp_path: Path) -> None:
    row = node_round(3, "a")
    assert row.record is not None
    row.record.events.append(Event("device refused", "wrong numbers"))
    with Store.create(tmp_path / "run.db", RUN) as store:
        store.add_node_round(row)
        event = store.events()[0]
    assert (event.round, event.partition, event.kind) == (3, "a", "device refused")


@pytest.mark.parametrize(
    "table", ["run", "sessions", "nodes", "node_rounds", "phases", "rounds", "events"]
)
def test_rows_cannot_be_changed_or_removed(tmp_path: Path, table: str) -> None:
    path = tmp_path / "run.db"
    with Store.create(path, RUN) as store:
        store.add_nodes({2: "a"})
        store.add_node_round(node_round(1, "a"))
        store.add_round(round_info(1))
        store.add_event("k", "m")
    db = sqlite3.connect(path)
    for statement in (f"DELETE FROM {table}", f"UPDATE {table} SET rowid = rowid + 1"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(statement)
    db.close()


def test_a_round_counts_as_its_last_session_did_it(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Store.create(path, RUN) as store:
        for number in (1, 2):
            store.add_node_round(node_round(number, "a"))
            store.add_round(round_info(number, accuracy=0.1))
        store.add_node_round(node_round(3, "a"))  # round 3 was interrupted
    with Store.append(path, RUN.versions, resumed_from_round=1) as store:
        again = node_round(2, "a", record=record("a", threads=2))
        store.add_node_round(again)
        store.add_round(round_info(2, accuracy=0.2))
        assert [(r.round, r.accuracy) for r in store.rounds()] == [(1, 0.1), (2, 0.2)]
        assert store.node_rounds() == [node_round(1, "a"), again]
        assert [r.round for r in store.node_rounds(whole=False)] == [1, 2, 2, 3]
        assert [s.resumed_from_round for s in store.sessions()] == [None, 1]


def test_choices_are_the_latest_of_each_round_and_node(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run.db", RUN) as store:
        store.add_node_round(node_round(1, "a"))
        store.add_node_round(node_round(1, "a", record=record("a", threads=8)))
        store.add_node_round(node_round(1, "b", status="rejected", error="NaN"))
        store.add_node_round(node_round(1, "c", task="evaluate"))
        choices = store.choices()
    assert list(choices) == [(1, "a")]
    assert '"threads":8' in choices[1, "a"]


def _complaint(path: Path) -> str:
    with pytest.raises(StoreError) as e:
        Store.read(path)
    assert "\n" not in str(e.value)
    assert str(path) in str(e.value)
    return str(e.value)


def test_what_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    assert "no such run" in _complaint(path)
    path.write_bytes(b"not a database at all, but long enough to be read as one" * 100)
    assert "damaged" in _complaint(path)
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (x)")
    db.commit()
    db.close()
    assert "not a pocketfed run" in _complaint(path)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    Store.create(path, RUN).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    assert "a newer pocketfed (schema 99" in _complaint(path)


def test_damage_that_sqlite_cannot_say_in_one_line(tmp_path: Path) -> None:
    """It quotes the table's text, with its lines, or with bytes that are no text."""
    path = tmp_path / "run.db"
    Store.create(path, RUN).close()
    whole = path.read_bytes()
    for found, damage in (
        (b"'late'", b"'late_"),
        (b"NOT NULL, versions", b"NO\xff NULL, versions"),
    ):
        content = whole.replace(found, damage)
        path.write_bytes(content)
        message = _complaint(path)
        assert "is damaged or no run" in message
        assert "\n" not in message


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Store.create(path, RUN) as store:
        for number in range(200):
            store.add_node_round(node_round(number, "a"))
    data = bytearray(path.read_bytes())
    for page in range(4096 * 12, len(data), 4096):
        data[page : page + 4096] = b"\xa5" * 4096
    path.write_bytes(data)
    with Store.read(path) as store, pytest.raises(StoreError, match="damaged"):
        store.node_rounds(whole=False)


def test_a_run_in_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite makes no file beside it: as on a read-only disk, or in another user's folder."""
    path = tmp_path / "run.db"
    with Store.create(path, RUN) as store:
        store.add_node_round(node_round(1, "a"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with Store.read(path) as store:
        assert len(store.node_rounds(whole=False)) == 1
        assert [p.name for p in tmp_path.iterdir()] == ["run.db"]


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    Store.create(path, RUN).close()
    with pytest.raises(StoreError, match="exists already"):
        Store.create(path, RUN)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Store.create(path, RUN) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
        written = 0

        def fill() -> None:
            nonlocal written
            while True:
                store.add_node_round(node_round(written + 1, "a"))
                written += 1

        with pytest.raises(StoreError, match="full: free some space, then go on by --resume") as e:
            fill()
        assert "\n" not in str(e.value)
    with Store.read(path) as store:
        assert written > 0
        assert [r.round for r in store.node_rounds(whole=False)] == list(range(1, written + 1))


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import RUN, Store, node_round, round_info
with Store.create(Path(sys.argv[1]), RUN) as store:
    for number in range(1, 100_000):
        store.add_node_round(node_round(number, "a"))
        store.add_node_round(node_round(number, "b"))
        store.add_round(round_info(number))
        print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 7, 23])
def test_killed_at_any_moment_the_database_is_whole(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "run.db"
    command = [sys.executable, "-c", _WRITER, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(rounds):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = rounds + len(process.stdout.read().split())
    with Store.read(path) as store:
        whole = [r.round for r in store.rounds()]
        rows = store.node_rounds(whole=False)
        assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert len(whole) >= told
    assert whole == list(range(1, len(whole) + 1))
    assert len(rows) >= 2 * len(whole)
    assert all(r.record is not None and len(r.record.phases) == 2 for r in rows)
