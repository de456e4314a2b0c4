"""Tables that fit the terminal: a narrow one omits the least important columns and names them; long names fold.

report_tables.py (job), evaluation_tables.py (eval, filter) -> FittingTable, ColumnGroups -> rich
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from rstar2_train.utils.text import printable

GAP = 2
"""Blanks between two columns."""
EDGES = 2
"""Blanks at both ends of a line."""
LEAST_NAME = 12
"""Minimum width of the first column, in characters."""


class Column(NamedTuple):
    """A column: its heading and a cell per row."""

    heading: str
    cells: Sequence[str | Text]
    rank: int = 0
    """Importance: a narrow terminal omits the highest rank first. 0: never omitted."""
    is_text: bool = False
    """Whether the cells are texts, which are aligned left and may fold."""

    @property
    def width(self) -> int:
        """The characters of the longest line."""
        cells = [str(cell) if isinstance(cell, Text) else printable(cell) for cell in self.cells]
        lines = [line for text in (self.heading, *cells) for line in text.split("\n")]
        return max(map(cell_len, lines))


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table whose first column has the names of the rows."""

    title: str | Text
    columns: Sequence[Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for the width of the console."""
        chosen = list(self.columns)
        while _least_width(chosen) > options.max_width and any(column.rank for column in chosen):
            chosen.remove(max(chosen, key=lambda column: column.rank))
        yield _table(self.title, chosen, options.max_width)
        omitted = [" ".join(column.heading.split()) for column in self.columns if column not in chosen]
        if omitted:
            yield Text(f"Not shown at this width: {', '.join(omitted)}.\n", style="dim")


@dataclass(frozen=True, slots=True)
class ColumnGroups:
    """A table whose columns are equally important: a narrow terminal shows them in several tables below each other."""

    title: str | Text
    names: Column
    columns: Sequence[Column]
    is_plain: bool = False
    """Whether no line is below the headings."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the tables for the width of the console."""
        title: str | Text = self.title
        rest = list(self.columns)
        while rest:
            count = len(rest)
            while count > 1 and _least_width([self.names, *rest[:count]]) > options.max_width:
                count -= 1
            yield _table(title, [self.names, *rest[:count]], options.max_width, is_plain=self.is_plain)
            rest, title = rest[count:], ""


def _least_width(columns: Sequence[Column]) -> int:
    """Return the width of a table whose texts fold to LEAST_NAME. Pure."""
    widths = [min(column.width, LEAST_NAME) if column.is_text else column.width for column in columns]
    return sum(widths) + GAP * (len(columns) - 1) + EDGES


def _table(title: str | Text, columns: Iterable[Column], width: int, *, is_plain: bool = False) -> Table:
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None if is_plain else box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=not is_plain,
    )
    chosen = list(columns)
    space = width - sum(column.width for column in chosen if not column.is_text) - GAP * (len(chosen) - 1) - EDGES
    texts = sorted((column for column in chosen if column.is_text), key=lambda column: column.width)
    limits: dict[int, int] = {}
    for left, column in zip(range(len(texts), 0, -1), texts, strict=True):  # short texts leave their space
        limits[id(column)] = limit = max(LEAST_NAME, min(column.width, space // left))
        space -= limit
    for column in chosen:
        table.add_column(
            Text(column.heading, justify="left" if column.is_text else "right"),
            justify="left" if column.is_text else "right",
            max_width=limits.get(id(column)),
            no_wrap=False,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in chosen), strict=True):
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return table
