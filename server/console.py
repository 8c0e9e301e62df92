"""What a person or a machine reads: tables by rich, and one JSON object as the last line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from client.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(stderr: bool = False) -> Console:
    """Rich's console; on a terminal in colour, elsewhere plain and wide enough for our tables.

    Text is shown as it is: 'pip install pocketfed[server]' must not lose what looks like markup.
    """
    try:
        from rich.console import Console
    except ImportError:
        raise MissingExtraError("rich", "server", "the command line") from None
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = 250
    return found


def table(
    title: str,
    columns: list[str],
    rows: list[list[str]],
    fold: tuple[str, ...] = (),
    cut: tuple[str, ...] = (),
    keys: int = 1,
) -> Table:
    """A table whose columns are aligned by what they hold: names left, numbers right.

    Where it does not fit, cells in the columns ``cut`` lose their ends and those in ``fold`` are
    broken into lines; then the table is: each part begins with the first ``keys`` columns.
    """
    from server.fitted import Fitted

    return Fitted(title, columns, rows, fold, cut, keys)


def json_line(value: dict[str, Any]) -> str:
    """One JSON object on one line; NaN and infinity become null, which JSON can say."""
    return json.dumps(_finite(value), separators=(", ", ": "), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def seconds(value: float) -> str:
    """Short and readable: 12.3 s, 4.56 ms."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def figures(accuracy: float | None, loss: float) -> str:
    """How good a model is; a loss that knows no right and wrong stands alone."""
    told = "" if accuracy is None else f"accuracy {accuracy:.4f}, "
    return f"{told}loss {loss:.4f}"


def short(name: str, longest: int = 28) -> str:
    """A device's name, cut to what a table has room for."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def nbytes(value: float) -> str:
    """Short and readable: 241.0 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
