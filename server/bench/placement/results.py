"""Rows on disk, one line each, so that a measurement of hours goes on where it was stopped."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client import __version__
from client.errors import ConfigError, StoreError
from client.fields import parse
from server.bench.placement.grid import Cell
from server.bench.placement.scoring import Row
from server.files import reason

HEADER = {"bench": "placement", "pocketfed": __version__}

log = logging.getLogger(__name__)


@dataclass
class Results:
    """A JSON-lines file: a header, then a row for each cell, each written as it was measured.

    A line that a crash cut off is left out; what follows it is written over it.
    """

    path: Path
    rows: dict[Cell, Row] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Results:
        """What there is; StoreError where the file is another one's, or cannot be used."""
        found = cls(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            found._begin()
            return found
        except (OSError, UnicodeDecodeError) as e:
            raise StoreError(f"{path}: cannot be read: {e}") from None
        whole, _, rest = text.rpartition("\n")
        lines = whole.split("\n") if whole else []
        if not lines or _json(lines[0]) != HEADER:
            raise StoreError(
                f"{path}: no rows of `bench placement` by pocketfed {__version__}: "
                "choose another file with --out, or remove this one"
            )
        for number, line in enumerate(lines[1:], 2):
            found._take(line, number)
        if rest:
            log.warning("%s: its last line is not whole and is measured again", path)
            found._cut_off(len(whole.encode()) + 1)
        return found

    def add(self, row: Row, timed: dict[str, float]) -> None:
        """Append a cell's row, and what every layout's step took when the oracle was sought."""
        self._append({"row": row.to_json(), "timed": timed})
        self.rows[_cell(row)] = row

    def _begin(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"{self.path}: cannot be written: {reason(e)}") from None
        self._append(HEADER)

    def _append(self, value: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as f:
                f.write(json.dumps(value) + "\n")
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            raise StoreError(f"{self.path}: cannot be written: {reason(e)}") from None

    def _cut_off(self, nbytes: int) -> None:
        try:
            os.truncate(self.path, nbytes)
        except OSError as e:
            raise StoreError(f"{self.path}: cannot be written: {reason(e)}") from None

    def _take(self, line: str, number: int) -> None:
        value = _json(line)
        try:
            row = parse(Row, value.get("row") if isinstance(value, dict) else value, "row")
        except ConfigError as e:
            raise StoreError(f"{self.path}: line {number} is no row: {e}") from None
        self.rows[_cell(row)] = row


def _cell(row: Row) -> Cell:
    return Cell(row.model, row.batch, row.device)


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
