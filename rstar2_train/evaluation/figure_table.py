"""A table of a benchmark's own figures, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FigureRow(NamedTuple):
    """A row: its name and its values."""

    name: str
    values: tuple[int | float | None, ...]
    """Counts (int) and shares (float); None: unknown."""
    is_mean: bool = False
    """Whether the values are means of other rows."""


class FigureTable(NamedTuple):
    """A table."""

    title: str
    note: str
    headings: tuple[str, ...]
    """Of the names, then of the values."""
    rows: Sequence[FigureRow]
    only_on_page: bool = False
    """Whether the terminal does not show it."""
