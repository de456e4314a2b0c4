"""Answers in the formats of public problem sets, written by hand and not by the generators of bench/forms.

`handwritten_answers.txt`: a line `G` is a gold answer; below it `+` is another form of it, `-` is a near miss.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rstar2_train.rewards.equality.check import verdict
from rstar2_train.rewards.verify import compare, parser_pairs


def answers() -> Iterator[tuple[str, str, bool]]:
    """Yield (gold answer, answer, whether it is another form of the gold answer)."""
    gold = ""
    for line in Path(__file__).with_name("handwritten_answers.txt").read_text(encoding="utf-8").splitlines():
        kind, text = line[0], line[2:]
        if kind == "G":
            gold = text
        else:
            yield gold, text, kind == "+"


def test_handwritten_answers_are_decided_right() -> None:
    """Each other form is accepted, and each near miss is refused."""
    decided = [
        (gold, text, expected, compare(text, gold) or verdict(parser_pairs(text, gold)))
        for gold, text, expected in answers()
    ]
    assert [row for row in decided if (row[3] == "correct") != row[2]] == []
    assert min(sum(row[2] is kind for row in decided) for kind in (True, False)) > 1000
