"""Known answers without a type, or with two readings, are warnings with their row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rstar2_train.cli.main import main
from rstar2_train.data.known_answers import answer_fault

TINY = Path(__file__).parents[3] / "examples" / "tiny.yaml"
CLEAR = (
    "5",
    "1,234",
    r"\frac{1}{2}",
    r"5\text{ m/s}",
    "5 m/s",
    "9.8 m/s^2",
    "3 kg",
    "(2,4)",
    "B",
    r"\text{Evelyn}",
    "x^2+y^2=25",
    "no solution",
)
ROWS = [
    {"id": "clear", "problem": "1+1", "answer": 2},
    {"id": "quotient", "problem": "Simplify.", "answer": "a/bc"},
    {"id": "proof", "problem": "Prove it.", "answer": "The proof is by induction over the number of vertices"},
]


@pytest.mark.parametrize("answer", CLEAR)
def test_answer_fault_clear_answer_has_none(answer: str) -> None:
    """Numbers, values, choices and short words are clear."""
    assert answer_fault(answer) is None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("a/bc", "two readings"),
        ("1,234 and 5", "two readings"),
        ("@#", "no type"),
        (r"\frac{1}{2", "no type"),
        ("The proof is by induction over the number of vertices", "it is a sentence"),
        ("(" * 60 + "x" + ")" * 60, "no type"),
    ],
)
def test_answer_fault_unclear_answer_has_a_reason(answer: str, fault: str) -> None:
    """A text without a type and an answer with two readings are named with the reason."""
    assert fault in (answer_fault(answer) or "")


def test_inspect_prints_unclear_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rstar2 data inspect` prints a warning per unclear answer, with file and line."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert main(["data", "inspect", str(file)]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert [line.partition(": answer")[0] for line in warnings] == [f"warning: {file}:{line}" for line in (2, 3)]


@pytest.mark.parametrize(("reward", "rows"), [("Math", ["quotient", "proof"]), ("Exact", [])])
def test_validate_prints_unclear_answers_of_math(
    reward: str, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rstar2 validate` accepts the job and names the rows, if the reward compares mathematics."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    manifest = yaml.safe_load(TINY.read_text())
    manifest["spec"]["rewards"] = [{"name": "graded", "type": reward}]
    for stage in manifest["spec"]["stages"]:
        if "grpo" in stage:
            stage["grpo"]["data"] = "./rows.jsonl"
            break
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    assert main(["validate", str(tmp_path / "job.yaml")]) == 0
    printed = capsys.readouterr().out
    assert [line.split(": ")[2] for line in printed.splitlines() if "answer '" in line] == [
        f"row {row}" for row in rows
    ]
