"""The rules for answers, and the verification of labels by sampled answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2_train.data.prepare.answer_rules import SampledAnswers, integer_answer
from rstar2_train.data.prepare.records import RemovedRow
from rstar2_train.data.readers import DataError


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("34", "34"),
        (" $1{,}234$ ", "1234"),
        ("-007", "-7"),
        ("18446744073709551615", "18446744073709551615"),  # 2^64 - 1: 20 digits
        ("3/4", "not-an-integer"),
        ("The limit does not exist", "not-an-integer"),
        ("Perimeter=54cm, Area=180cm²", "not-an-integer"),
        ("0.5", "not-an-integer"),
        ("2e3", "not-an-integer"),
        ("", "not-an-integer"),
        ("1" * 21, "enormous-answer"),
        ("9" * 100_000, "enormous-answer"),
        ("6.5e27330467", "enormous-answer"),
        ("1e999999999999999999", "enormous-answer"),
    ],
)
def test_integer_answer_accepts_integers_of_limited_length(answer: str, result: str) -> None:
    """Integers up to the maximum length pass, in canonical form."""
    checked = integer_answer(answer, max_digits=20)
    assert (checked.rule if isinstance(checked, RemovedRow) else checked) == result
    assert not isinstance(checked, RemovedRow) or len(checked.reason) < 100


def _sampled(folder: Path, *rows: object) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sampled_answers_check_needs_two_equal_answers(tmp_path: Path) -> None:
    """Two sampled answers equal to the label confirm it."""
    rows = [
        {"id": "twice", "answers": ["7", "8", "$07$", "x", None]},
        {"id": "once", "answers": ["7", "8", "9"]},
        {"id": "other", "answers": ["8"] * 16},
    ]
    sampled = SampledAnswers(_sampled(tmp_path, *rows), agree=2)
    assert sampled.check("twice", "7") is None
    assert sampled.check("once", "7") == RemovedRow(
        "unverified", "the label is 7; sampled at least 2 times: no integer"
    )
    assert sampled.check("other", "7") == RemovedRow("unverified", "the label is 7; sampled at least 2 times: 8")
    assert sampled.check("absent", "7") == RemovedRow("not-sampled", "no row with this id")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"answers": ["1"]}], ":1: id must be a non-empty text"),
        ([{"id": "a", "answers": "1"}], ":1: answers must be a list of texts, got '1'"),
        ([{"id": "a", "answers": []}, {"id": "a", "answers": []}], ":2: duplicate id 'a'"),
    ],
)
def test_sampled_answers_of_invalid_row_names_line(tmp_path: Path, rows: list[object], message: str) -> None:
    """The error of an invalid row names its line."""
    with pytest.raises(DataError) as caught:
        SampledAnswers(_sampled(tmp_path, *rows), agree=2)
    assert message in str(caught.value)
