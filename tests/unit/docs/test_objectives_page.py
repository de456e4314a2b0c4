"""docs/objectives.md has the types of objectives, with their fields and defaults."""

from __future__ import annotations

import re

from pydantic.alias_generators import to_camel

from rstar2_train.api.objectives import OBJECTIVES
from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "objectives.md").read_text("utf-8")
OWN_SECTION = {"Custom"}
"""Type without a row: the page has a section about it."""


def test_objectives_page_has_each_type_with_its_defaults() -> None:
    """The column of fields: the name and the default, by which the manifest sets it."""
    table = PAGE.partition("## Types")[2].partition("| Type | Use it")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|[^|]*\|$", table, re.MULTILINE)
    stated = {kind: _defaults(cells.rpartition("|")[2]) for kind, cells in rows}
    assert stated == {
        kind: {to_camel(name): value for name, value in fields.items()}
        for kind, fields in OBJECTIVES.items()
        if kind not in OWN_SECTION
    }


def test_objectives_page_has_a_use_of_each_type() -> None:
    """The second table has the same types in the same order."""
    uses = re.findall(r"^\| `(\w+)` \|", PAGE.partition("| Type | Use it")[2].partition("\n\n")[0], re.MULTILINE)
    assert uses == [kind for kind in OBJECTIVES if kind not in OWN_SECTION]


def _defaults(cell: str) -> dict[str, float | str | None]:
    """Return field -> default of a cell such as `clipLow` 1 (no bound), `clipHigh` 4; None for a required field."""
    values = dict(re.findall(r"`(\w+)` ([\w.-]+)", cell))
    return {name: None if text == "required" else _number(text) for name, text in values.items()}


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[\d.]+(e-?\d+)?", text) else text
