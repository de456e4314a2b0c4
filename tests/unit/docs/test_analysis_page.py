"""docs/analysis.md lists the columns of the trajectory files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from rstar2_train.rollout.trajectory_store import SCHEMA
from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "analysis.md").read_text("utf-8")
DESCRIBED = {"segments.versions", "calls.files"}
"""Lists whose members are in the text of their row."""


def test_analysis_page_has_each_column_of_a_trajectory_file() -> None:
    """Columns, and the members of segments and calls; no other."""
    table = PAGE.partition("\n## Columns of a trajectory file\n")[2].partition("\n\n```")[0]
    listed = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert {name for cell in listed for name in re.findall(r"`([\w.]+)`", cell)} == set(_columns(SCHEMA))


def _columns(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[str]:
    """Yield the names of the columns, and as COLUMN.MEMBER those of the members of structs."""
    for field in fields:
        name = prefix + field.name
        yield name
        if pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type) and name not in DESCRIBED:
            yield from _columns(field.type.value_type.fields, f"{name}.")
