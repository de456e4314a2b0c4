"""Freeze by evidence: cases of the case files run every rule of the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rstar2_verify import verify

sys.path.insert(0, str(Path(__file__).parent))
from evidence import CASES, EVIDENCE, FOLDER, lines_of, rules


def test_every_rule_has_a_case() -> None:
    """The cases of evidence.jsonl are in the case files, and run each rule. `python tests/evidence.py` finds others."""
    cases = [json.loads(line) for line in EVIDENCE.read_text("utf-8").splitlines()]
    written = [json.loads(line) for path in CASES.glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    assert {(case["known"], case["answer"]) for case in cases} <= {(case["known"], case["answer"]) for case in written}
    ran = lines_of(lambda: [verify(case["known"], case["answer"]) for case in cases])
    text = {path.stem: path.read_text("utf-8").splitlines() for path in FOLDER.glob("*.py")}
    assert [f"{module}.py:{line}: {text[module][line - 1]}" for module, line in sorted(rules() - ran)] == []
