"""docs/models.md has the measured table, and the code the families that it proves."""

from __future__ import annotations

import json

from bench.models import PAGE, RESULTS, table
from rstar2_train.capacity.model_support import PROVEN
from tests.support.model_families import FAMILIES, UNPACKED
from tests.support.model_faults import FAULTS


def test_models_page_has_the_measured_table() -> None:
    """The page, the result and the families of the tests are the same ones."""
    result = json.loads(RESULTS.read_text())
    assert table(result) in PAGE.read_text()
    assert [row["family"] for row in result["families"]] == list(FAMILIES)
    assert {row["family"] for row in result["families"] if "packed_refused" in row} == UNPACKED
    assert {row["model_type"] for row in result["families"] if row["family"] not in UNPACKED} == PROVEN


def test_models_result_has_no_difference_and_no_missed_fault() -> None:
    """Each family equals transformers and learns; each seeded fault is refused."""
    result = json.loads(RESULTS.read_text())
    for row in result["families"]:
        assert row["padded"] <= 1e-5 and "refused" not in row
        assert "packed_refused" in row or row["packed"] <= 1e-5
        assert row["loss_change"] < -1e-3
    assert [row["fault"] for row in result["faults"] if row["refused"]] == list(FAULTS)
