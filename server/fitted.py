"""Tables that stay readable where there is little room: no name and no number is ever cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
CUT_AT_LEAST = 12
FOLD_AT_LEAST = 40


class Fitted(Table):
    """A table which breaks into several, one under the other, where its columns do not fit.

    Each of them begins with the first ``keys`` columns. Before that, cells in the columns ``cut``
    lose their ends, and cells in the columns ``fold`` take several lines; no others change.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        fold: Sequence[str] = (),
        cut: Sequence[str] = (),
        keys: int = 1,
    ) -> None:
        heading = Text(title, no_wrap=True, overflow="ignore")  # may be wider than the table
        super().__init__(
            title=heading if title else None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            show_edge=False,
            pad_edge=False,
            padding=(0, GAP - 1, 0, 0),
        )
        self._names, self._cells = columns, rows
        self._fold, self._cut, self._keys = fold, cut, keys
        self._natural = [
            max(map(cell_len, (name, *(row[i] for row in rows)))) for i, name in enumerate(columns)
        ]
        for i, name in enumerate(columns):
            cells = [row[i] for row in rows]
            numeric = bool(cells) and all(_is_number(c) for c in cells)
            justify: Literal["left", "right"] = "right" if numeric else "left"
            self.add_column(name, justify=justify, overflow="fold", no_wrap=name not in fold)
        for row in rows:
            self.add_row(*map(self._cell, columns, row))

    def _cell(self, column: str, text: str) -> str | Text:
        return Text(text, no_wrap=True, overflow="ellipsis") if column in self._cut else text

    def _least(self, i: int) -> int:
        name, natural = self._names[i], self._natural[i]
        if name in self._cut:
            return min(natural, max(CUT_AT_LEAST, cell_len(name)))
        return min(natural, FOLD_AT_LEAST) if name in self._fold else natural

    def _parts(self, room: int) -> list[list[int]]:
        """The columns of each table, so that none needs more than ``room``, if that can be."""
        keys = list(range(min(self._keys, len(self._names))))
        parts, part = [], list(keys)
        for i in range(len(keys), len(self._names)):
            needed = sum(map(self._least, [*part, i])) + GAP * len(part)
            if needed > room and len(part) > len(keys):
                parts.append(part)
                part = list(keys)
            part.append(i)
        return [*parts, part]

    def _share_out(self, room: int) -> None:
        """What is left of ``room`` goes to the columns that are cut, then to those that fold."""
        everything = range(len(self._names))
        left = room - sum(map(self._least, everything)) - GAP * (len(self._names) - 1)
        for chosen in (self._cut, self._fold):
            for i in everything:
                if self._names[i] in chosen:
                    more = max(0, min(left, self._natural[i] - self._least(i)))
                    self.columns[i].width = self._least(i) + more
                    left -= more

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = self._parts(options.max_width)
        if len(parts) == 1:
            self._share_out(options.max_width)
            yield from super().__rich_console__(console, options)
            return
        for number, part in enumerate(parts):
            if number:
                yield ""
            names = [self._names[i] for i in part]
            cells = [[row[i] for i in part] for row in self._cells]
            title = "" if number else str(self.title)
            yield Fitted(title, names, cells, self._fold, self._cut, len(names))


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] in "-+–" or not cell
