"""Every case file: one line of JSON per pair of a known answer and an answer, and whether both are equal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rstar2_verify import verify

CASES = Path(__file__).with_name("cases")
MAX_CASES = 1_000
"""Cases of a file that the tests compare: every n-th line of a longer one. RSTAR2_ALL_CASES=1 compares all lines."""


@pytest.mark.parametrize("path", sorted(CASES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_cases_have_the_expected_verdict(path: Path) -> None:
    """Each pair of a case file is equal or different, as its line states; one that is marked `open` is not yet."""
    lines = path.read_text(encoding="utf-8").splitlines()
    step = 1 if os.environ.get("RSTAR2_ALL_CASES") else -(-len(lines) // MAX_CASES)
    cases = [json.loads(line) for line in lines[::step]]
    wrong = [
        (case["known"], case["answer"], case["equal"])
        for case in cases
        if verify(case["known"], case["answer"]).outcome
        != ("equal" if case["equal"] != case.get("open", False) else "different")
    ]
    assert wrong == []
