"""docs/models.md has the measured table, and the code the families that it proves."""

from __future__ import annotations

import json

from bench.models import PAGE, RESULTS, table
from rstar2_train.capacity.engine_support import ENGINE_DIFFERS
from rstar2_train.capacity.model_support import ADAPTED, PROVEN
from tests.support.model_families import FAMILIES, UNPACKED
from tests.support.model_faults import FAULTS


def test_models_page_has_the_measured_table() -> None:
    """The page, the result and the families of the tests are the same ones."""
    result = json.loads(RESULTS.read_text())
    assert table(result) in PAGE.read_text()
    assert [row["family"] for row in result["families"]] == list(FAMILIES)
    assert {row["family"] for row in result["families"] if "packed_refused" in row} == UNPACKED
    assert {row["model_type"] for row in result["families"] if row["family"] not in UNPACKED} == PROVEN
    assert [row["family"] for row in result["engines"]["families"]] == list(FAMILIES)


def test_models_that_an_engine_computes_otherwise_are_refused() -> None:
    """An engine computes each family as transformers does, or stops with an error, or `validate` refuses the family."""
    result = json.loads(RESULTS.read_text())
    kinds = {row["family"]: row["model_type"] for row in result["families"]}
    for row in result["engines"]["families"]:
        refused = kinds[row["family"]] in ENGINE_DIFFERS
        assert refused == ("refused" in row)
        assert ("adapter" in row) == (kinds[row["family"]] in ADAPTED and "error" not in row)
        if not refused and "error" not in row:
            assert max(row["difference"], row["reloaded"], row.get("adapter", 0.0)) < 1e-4, row
            assert row["other_tensors"] == [], row


def test_models_result_has_no_difference_and_no_missed_fault() -> None:
    """Each family equals transformers and learns; each seeded fault is refused."""
    result = json.loads(RESULTS.read_text())
    for row in result["families"]:
        assert row["padded"] <= 1e-5 and "refused" not in row
        assert "packed_refused" in row or row["packed"] <= 1e-5
        assert row["loss_change"] < -1e-3
    assert [row["fault"] for row in result["faults"] if row["refused"]] == list(FAULTS)
