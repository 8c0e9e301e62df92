"""run.db: what happened in a run, in SQLite. Rows are only ever inserted (see server/schema.py).

Each start or resume of a run is a session. What a node did is a row of ``node_rounds`` (its phases
in ``phases``), written when its reply arrives; a row of ``rounds`` is written last, when a round
is whole and its checkpoint lies on disk. So a round that was interrupted leaves its nodes' rows,
and no row in ``rounds``. A round that was done again counts as its last session did it.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from client.backends.figures import Traffic
from client.errors import ConfigError, StoreError
from client.fields import parse
from client.record import Decision, NodeRecord, Placement
from server.schema import check_schema, complaints, connect, schema


@dataclass(frozen=True)
class RunInfo:
    """The one row that says what the run is. ``base``: where the experiment's paths start."""

    name: str
    experiment: dict[str, Any]
    base: str
    seed: int
    versions: dict[str, str]
    created_at: str


@dataclass(frozen=True)
class SessionInfo:
    """A start (``resumed_from_round`` is None) or a resume of the run."""

    id: int
    started_at: str
    resumed_from_round: int | None
    host: str
    pid: int
    versions: dict[str, str]
    argv: list[str]


@dataclass(frozen=True)
class NodeRound:
    """What one node did in one round, seen from the server.

    ``record`` is the node's own; without it (failed, late) there is only the ``error``.
    ``dispatch_to_reply_s``: from sending the task to the reply's arrival, on the server's clock.
    ``bytes_down`` and ``bytes_up``: payload of the message to the node and of its reply.
    """

    round: int
    partition: str
    node_id: int
    task: Literal["train", "evaluate"]
    status: Literal["ok", "failed", "rejected", "late"]
    bytes_down: int
    bytes_up: int = 0
    dispatch_to_reply_s: float | None = None
    error: str | None = None
    record: NodeRecord | None = None

    @property
    def network_and_queue_s(self) -> float | None:
        """What of the time between dispatch and reply the node did not work."""
        if self.dispatch_to_reply_s is None or self.record is None:
            return None
        return self.dispatch_to_reply_s - self.record.wall_s


@dataclass(frozen=True)
class RoundInfo:
    """A whole round. ``loss`` and ``accuracy`` are the global model's on the central examples,
    ``train_loss`` the nodes' mean while training, ``node_*`` on the nodes' held-out examples."""

    round: int
    loss: float | None
    accuracy: float | None
    train_loss: float | None
    node_loss: float | None
    node_accuracy: float | None
    wall_s: float
    replies: int
    lr: float  # of all nodes in this round
    checkpoint: str
    checkpoint_sha256: str


@dataclass(frozen=True)
class EventInfo:
    """Something a researcher should know, when and where it happened."""

    at: str
    round: int | None
    partition: str | None
    kind: str
    message: str


T = TypeVar("T")

_TRAFFIC = tuple(Traffic.__dataclass_fields__)
_OF_RECORD = (
    "num_examples",
    "loss",
    "accuracy",
    "layout",
    "reason",
    "wall_s",
    "unattributed_s",
    "launches",
    "peak_nbytes",
)
"""Fields of a node's record that are columns as they are."""


class Store:
    """An open run.db. ``create`` and ``append`` begin a session and write; ``read`` only reads."""

    def __init__(self, path: Path, db: sqlite3.Connection, session: int | None) -> None:
        self.path = path
        self._db = db
        self._session = session

    # -- opening -----------------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path, run: RunInfo) -> Store:
        """A new run.db with its first session; StoreError if there is one already."""
        if path.exists():
            raise StoreError(f"{path}: exists already; resume the run or choose another folder")
        with complaints(path):
            db = connect(path, "rwc")
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(schema())
        store = cls(path, db, None)
        columns = ("name", "experiment", "base", "seed", "versions", "created_at")
        store._insert("run", columns, _row(run))
        return store._begin(run.versions, None)

    @classmethod
    def append(cls, path: Path, versions: dict[str, str], resumed_from_round: int | None) -> Store:
        """An existing run.db with one more session."""
        store = cls._open(path, "rw")
        return store._begin(versions, resumed_from_round)

    @classmethod
    def read(cls, path: Path) -> Store:
        """An existing run.db, to read; another process may be writing it."""
        return cls._open(path, "ro")

    @classmethod
    def _open(cls, path: Path, mode: str) -> Store:
        if not path.is_file():
            raise StoreError(f"{path}: no such run: give the folder of a run, as in runs/NAME-TIME")
        with complaints(path):
            db = connect(path, mode)
            try:
                check_schema(db, path)
            except BaseException:
                db.close()
                raise
        return cls(path, db, None)

    def _begin(self, versions: dict[str, str], resumed_from_round: int | None) -> Store:
        self._session = self._insert(
            "sessions",
            ("started_at", "resumed_from_round", "host", "pid", "versions", "argv"),
            (
                now(),
                resumed_from_round,
                socket.gethostname(),
                os.getpid(),
                _json(versions),
                _json(sys.argv),
            ),
        )
        return self

    def close(self) -> None:
        """Close the file. Everything written is there already."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- writing: one commit per call ---------------------------------------------------------

    def add_nodes(self, names: dict[int, str]) -> None:
        """The nodes of this session: node id -> partition name."""
        for node_id, partition in names.items():
            self._insert(
                "nodes",
                ("session", "partition", "node_id"),
                (self._session, partition, str(node_id)),
            )

    def add_data(self, source: str, sha256: str) -> None:
        """The data set of this session, as the server reads it."""
        self._insert("data", ("session", "source", "sha256"), (self._session, source, sha256))

    def add_node_round(self, row: NodeRound) -> None:
        """What a node did, with its phases and events."""
        values: dict[str, Any] = {
            "session": self._session,
            "at": now(),
            "round": row.round,
            "partition": row.partition,
            "node_id": str(row.node_id),
            "task": row.task,
            "status": row.status,
            "error": row.error,
            "dispatch_to_reply_s": row.dispatch_to_reply_s,
            "bytes_down": row.bytes_down,
            "bytes_up": row.bytes_up,
        }
        record = row.record
        if record is not None:
            placed, decided = record.placement, record.decision
            values |= {
                "device": _json(record.device),
                "placement": None if placed is None else _json(asdict(placed)),
                "decision": None if decided is None else _json(asdict(decided)),
                "measured": _json(record.measured),
            }
            values |= {name: getattr(record, name) for name in _OF_RECORD}
            values |= {name: record.traffic.get(name) for name in _TRAFFIC}
        with complaints(self.path), self._db:
            self._db.execute("BEGIN")
            number = self._execute("node_rounds", tuple(values), tuple(values.values()))
            if record is not None:
                for name, seconds in record.phases.items():
                    columns = ("node_round", "name", "duration_s")
                    self._execute("phases", columns, (number, name, seconds))
                for event in record.events:
                    self._execute("events", _EVENT, self._event(row, event.kind, event.message))

    def add_round(self, row: RoundInfo) -> None:
        """A round is whole: its nodes' rows are written and its checkpoint lies on disk."""
        columns = ("session", "at", *RoundInfo.__dataclass_fields__)
        values = (self._session, now(), *_row(row))
        self._insert("rounds", columns, values)

    def add_event(
        self, kind: str, message: str, round_number: int | None = None, partition: str | None = None
    ) -> None:
        """Something a researcher should know."""
        values = (self._session, now(), round_number, partition, kind, message)
        self._insert("events", _EVENT, values)

    def _event(self, row: NodeRound, kind: str, message: str) -> tuple[Any, ...]:
        return (self._session, now(), row.round, row.partition, kind, message)

    def _insert(self, table: str, columns: tuple[str, ...], values: tuple[Any, ...]) -> int:
        with complaints(self.path):
            return self._execute(table, columns, values)

    def _execute(self, table: str, columns: tuple[str, ...], values: tuple[Any, ...]) -> int:
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        number = self._db.execute(sql, [_unicode(v) for v in values]).lastrowid
        assert number is not None
        return number

    # -- reading -----------------------------------------------------------------------------

    def run(self) -> RunInfo:
        """What the run is."""
        row = self._select("SELECT * FROM run")[0]
        return RunInfo(
            row["name"],
            self._from_json(row["experiment"]),
            row["base"],
            int(row["seed"]),
            self._from_json(row["versions"]),
            row["created_at"],
        )

    def sessions(self) -> list[SessionInfo]:
        """All starts and resumes, oldest first."""
        return [
            SessionInfo(
                **{
                    **dict(row),
                    "versions": self._from_json(row["versions"]),
                    "argv": self._from_json(row["argv"]),
                }
            )
            for row in self._select("SELECT * FROM sessions ORDER BY id")
        ]

    def data_sha256(self) -> str | None:
        """Digest of the data set that the run began with; None if the server reads none."""
        rows = self._select("SELECT sha256 FROM data ORDER BY id LIMIT 1")
        return rows[0]["sha256"] if rows else None

    def rounds(self) -> list[RoundInfo]:
        """Whole rounds in order, each as the last session did it."""
        columns = ", ".join(RoundInfo.__dataclass_fields__)
        rows = self._select(f"SELECT {columns} FROM rounds WHERE {_LAST} ORDER BY round")
        return [RoundInfo(**dict(row)) for row in rows]

    def node_rounds(self, whole: bool = True) -> list[NodeRound]:
        """What nodes did, in order of round, task and partition.

        With ``whole``, only whole rounds, each as the last session did it; else everything.
        """
        last = "(round, session) IN (SELECT round, max(session) FROM rounds GROUP BY round)"
        phases: dict[int, dict[str, float]] = {}
        for row in self._select("SELECT * FROM phases ORDER BY rowid"):
            phases.setdefault(row["node_round"], {})[row["name"]] = row["duration_s"]
        where = f"WHERE {last}" if whole else ""
        order = "ORDER BY round, session, task DESC, partition, id"
        rows = self._select(f"SELECT * FROM node_rounds {where} {order}")
        return [self._node_round(row, phases.get(row["id"], {})) for row in rows]

    def events(self) -> list[EventInfo]:
        """All events, oldest first."""
        columns = ", ".join(EventInfo.__dataclass_fields__)
        return [
            EventInfo(**dict(row))
            for row in self._select(f"SELECT {columns} FROM events ORDER BY id")
        ]

    def choices(self) -> dict[tuple[int, str], str]:
        """(round, partition) -> JSON of the placement that trained there, the latest of each.

        Rounds that were interrupted are among them: what is done again repeats its choices.
        """
        rows = self._select(
            "SELECT round, partition, placement FROM node_rounds "
            "WHERE task = 'train' AND status = 'ok' AND placement IS NOT NULL ORDER BY id"
        )
        return {(row["round"], row["partition"]): row["placement"] for row in rows}

    def _node_round(self, row: sqlite3.Row, phases: dict[str, float]) -> NodeRound:
        record = None
        if row["wall_s"] is not None:
            record = NodeRecord(
                partition=row["partition"],
                device=self._from_json(row["device"]),
                placement=self._parsed(Placement, row["placement"]),
                decision=self._parsed(Decision, row["decision"]),
                measured=self._from_json(row["measured"]),
                phases=phases,
                traffic={k: row[k] for k in _TRAFFIC if row[k] is not None},
                **{name: row[name] for name in _OF_RECORD},
            )
        return NodeRound(
            round=row["round"],
            partition=row["partition"],
            node_id=int(row["node_id"]),
            task=row["task"],
            status=row["status"],
            bytes_down=row["bytes_down"],
            bytes_up=row["bytes_up"],
            dispatch_to_reply_s=row["dispatch_to_reply_s"],
            error=row["error"],
            record=record,
        )

    def _select(self, sql: str) -> list[sqlite3.Row]:
        with complaints(self.path):
            return self._db.execute(sql).fetchall()

    def _parsed(self, kind: type[T], text: str | None) -> T | None:
        try:
            return None if text is None else parse(kind, self._from_json(text), kind.__name__)
        except ConfigError as e:
            raise StoreError(f"{self.path}: is damaged: {e}") from None

    def _from_json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise StoreError(f"{self.path}: is damaged: a value is not JSON") from None


_EVENT = ("session", "at", "round", "partition", "kind", "message")
_LAST = "id IN (SELECT max(id) FROM rounds GROUP BY round)"


def _unicode(value: Any) -> Any:
    """Text that SQLite takes: names of files need not be Unicode, and complaints quote them."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def now() -> str:
    """This moment in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _row(info: RunInfo | RoundInfo) -> tuple[Any, ...]:
    values = (getattr(info, name) for name in info.__dataclass_fields__)
    return tuple(_json(v) if isinstance(v, dict) else v for v in values)
