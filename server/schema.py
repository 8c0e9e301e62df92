"""The tables of run.db, and how the file is opened. Triggers keep rows from being changed.

Write-ahead logging with full synchronisation: a commit survives kill -9 and loss of power.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.errors import StoreError

SCHEMA_VERSION = 3

_TABLES = {
    "run": """
        id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, experiment TEXT NOT NULL,
        base TEXT NOT NULL, seed TEXT NOT NULL, versions TEXT NOT NULL, created_at TEXT NOT NULL""",
    "sessions": """
        id INTEGER PRIMARY KEY, started_at TEXT NOT NULL, resumed_from_round INTEGER,
        host TEXT NOT NULL, pid INTEGER NOT NULL, versions TEXT NOT NULL, argv TEXT NOT NULL""",
    "data": """
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions (id),
        source TEXT NOT NULL, sha256 TEXT NOT NULL""",
    "nodes": """
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions (id),
        partition TEXT NOT NULL, node_id TEXT NOT NULL""",
    "node_rounds": """
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions (id),
        at TEXT NOT NULL, round INTEGER NOT NULL, partition TEXT NOT NULL, node_id TEXT NOT NULL,
        task TEXT NOT NULL CHECK (task IN ('train', 'evaluate')),
        status TEXT NOT NULL CHECK (status IN ('ok', 'failed', 'rejected', 'late')),
        error TEXT, dispatch_to_reply_s REAL,
        bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL,
        num_examples INTEGER, loss REAL, accuracy REAL,
        device TEXT, placement TEXT, layout TEXT, reason TEXT, decision TEXT,
        measured TEXT, wall_s REAL, unattributed_s REAL,
        upload_nbytes INTEGER, download_nbytes INTEGER, compute_s REAL, transfer_s REAL,
        copy_s REAL, sampled_steps INTEGER, launches INTEGER, peak_nbytes INTEGER""",
    "phases": """
        node_round INTEGER NOT NULL REFERENCES node_rounds (id), name TEXT NOT NULL,
        duration_s REAL NOT NULL""",
    "rounds": """
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions (id),
        at TEXT NOT NULL, round INTEGER NOT NULL, loss REAL, accuracy REAL, train_loss REAL,
        node_loss REAL, node_accuracy REAL, wall_s REAL NOT NULL, replies INTEGER NOT NULL,
        lr REAL NOT NULL, checkpoint TEXT NOT NULL, checkpoint_sha256 TEXT NOT NULL""",
    "events": """
        id INTEGER PRIMARY KEY, session INTEGER NOT NULL REFERENCES sessions (id),
        at TEXT NOT NULL, round INTEGER, partition TEXT,
        kind TEXT NOT NULL, message TEXT NOT NULL""",
}


def schema() -> str:
    """SQL that makes the tables of an empty file."""
    parts = [f"CREATE TABLE {name} ({columns}) STRICT;" for name, columns in _TABLES.items()]
    parts += [
        f"CREATE TRIGGER {name}_no_{verb} BEFORE {verb} ON {name} "
        f"BEGIN SELECT RAISE(ABORT, 'run.db is append-only'); END;"
        for name in _TABLES
        for verb in ("UPDATE", "DELETE")
    ]
    parts.append("CREATE INDEX node_rounds_by_round ON node_rounds (round, session);")
    parts.append("CREATE INDEX phases_by_node_round ON phases (node_round);")
    parts.append(f"PRAGMA user_version = {SCHEMA_VERSION};")
    return "BEGIN;" + "".join(parts) + "COMMIT;"


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file: ``mode`` "rwc" makes it, "rw" writes it, "ro" reads it."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not _log_of(path).exists():
        uri += "&immutable=1"  # else SQLite would need to make its shared-memory file there
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    return db


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """StoreError if this is no run, or one that this version cannot read."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'run'").fetchone()[0]
    if tables == 0 or version == 0:
        raise StoreError(f"{path}: is not a pocketfed run")
    if version != SCHEMA_VERSION:
        other = "a newer" if version > SCHEMA_VERSION else "an older"
        raise StoreError(
            f"{path}: written by {other} pocketfed (schema {version}, "
            f"this one reads {SCHEMA_VERSION})"
        )
    if db.execute("SELECT count(*) FROM run").fetchone()[0] == 0:
        raise StoreError(f"{path}: the run was killed as it started; start it anew")


@contextmanager
def complaints(path: Path) -> Iterator[None]:
    """SQLite's errors as one line that names the file."""
    try:
        yield
    except UnicodeDecodeError:  # the damage is in what SQLite's complaint would have quoted
        raise StoreError(f"{path}: is damaged or no run: holds text that is none") from None
    except sqlite3.DatabaseError as e:
        text = " ".join(str(e).split())
        remedy = ": free some space, then go on by --resume" if "full" in text else ""
        damaged = type(e) is sqlite3.DatabaseError
        what = "is damaged or no run" if damaged else "cannot be read or written"
        raise StoreError(f"{path}: {what}: {text}{remedy}") from None


def _log_of(path: Path) -> Path:
    """SQLite's write-ahead log; gone once the last writer has closed the file in good order."""
    return path.with_name(path.name + "-wal")
