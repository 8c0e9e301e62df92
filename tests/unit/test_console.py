"""What is printed for people and for machines."""

from __future__ import annotations

import json
import math
import sys

import pytest

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
