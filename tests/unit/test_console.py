"""What is printed for people and for machines."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
from rich.console import Console
from rich.table import Table

from client.errors import MissingExtraError
from server import console


def test_json_is_one_line_and_finite() -> None:
    value = {"a": math.nan, "b": [math.inf, (1.5, -math.inf)], "c": {"d": "x\ny", "e": None}}
    line = console.json_line(value)
    assert "\n" not in line
    assert json.loads(line) == {"a": None, "b": [None, [1.5, None]], "c": {"d": "x\ny", "e": None}}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12.345, "12.35 s"), (1.0, "1.00 s"), (0.00456, "4.6 ms"), (0.00012, "120 us"), (0, "0 us")],
)
def test_seconds(value: float, shown: str) -> None:
    assert console.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (246_824, "241.0 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (5 * 2**40, "5120.0 GiB"),
    ],
)
def test_nbytes(value: int, shown: str) -> None:
    assert console.nbytes(value) == shown


def test_numbers_stand_right_and_names_left() -> None:
    table = console.table("t", ["name", "n"], [["a", "1"], ["b", "–"], ["c", "-2,000"], ["d", ""]])
    assert [c.justify for c in table.columns] == ["left", "right"]
    assert console.table("t", ["name"], []).columns[0].justify == "left"


def printed(width: int, table: Table) -> list[str]:
    out = Console(width=width, file=io.StringIO(), record=True, markup=False)
    out.print(table)
    return [line.rstrip() for line in out.export_text().splitlines()]


def fitted() -> Table:
    rows = [[f"node-{i}", "a device with a long name", "1234567", "some reason " * 6] for i in "12"]
    columns = ["node", "device", "examples", "why"]
    return console.table("all of it", columns, rows, fold=("why",), cut=("device",))


def test_a_table_that_fits_is_shown_whole() -> None:
    _, head, _, first, second = printed(200, fitted())
    assert head.split() == ["node", "device", "examples", "why"]
    assert first.startswith("node-1  a device with a long name   1234567  some reason some")
    assert second.startswith("node-2")


def test_first_a_cell_loses_its_end_and_lines_are_broken() -> None:
    lines = printed(74, fitted())
    assert lines[3].startswith("node-1  a device with…   1234567  some reason")
    assert lines[4].split()[:2] == ["reason", "some"]
    assert max(map(len, lines)) <= 74


def test_then_the_columns_go_on_below() -> None:
    lines = printed(60, fitted())
    heads = [line.split() for line in lines if line.startswith("node ")]
    assert heads == [["node", "device", "examples"], ["node", "why"]]
    assert lines[0] == "all of it"
    assert sum(line.startswith("node-1") for line in lines) == 2
    assert max(map(len, lines)) <= 60


def test_what_looks_like_markup_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    out = console.console()
    out.print("pip install 'pocketfed[server]' :smile:")
    out.print(console.table("title [data]", ["remedy"], [["pip install 'pocketfed[data]'"]]))
    shown = capsys.readouterr().out
    assert "pip install 'pocketfed[server]' :smile:" in shown
    assert "title [data]" in shown
    assert "pip install 'pocketfed[data]'" in shown


def test_no_terminal_is_plain_and_wide(capsys: pytest.CaptureFixture[str]) -> None:
    out = console.console()
    assert not out.is_terminal
    out.print("x" * 150)
    assert capsys.readouterr().out == "x" * 150 + "\n"


def test_without_rich_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pocketfed\[server\]'"):
        console.console()
