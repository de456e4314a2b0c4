"""The rules on answers, and what sampled answers confirm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2_train.data.prepare.answer_rules import SampledAnswers, checked_integer
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
def test_only_whole_numbers_of_a_sensible_size_are_answers(answer: str, result: str) -> None:
    checked = checked_integer(answer, max_digits=20)
    assert (checked.rule if isinstance(checked, RemovedRow) else checked) == result
    assert not isinstance(checked, RemovedRow) or len(checked.why) < 100


def _sampled(folder: Path, *rows: object) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_two_sampled_answers_confirm_a_label(tmp_path: Path) -> None:
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
        ([{"id": "a", "answers": []}, {"id": "a", "answers": []}], ":2: id 'a' a second time"),
    ],
)
def test_a_bad_row_of_sampled_answers_is_named(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        SampledAnswers(_sampled(tmp_path, *rows), agree=2)
    assert message in str(caught.value)
