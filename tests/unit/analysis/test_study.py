"""The study's figures on trajectories that can be counted by hand."""

import pytest

from rstar2_train.analysis.study import LEAST_OCCURRENCES, Study
from rstar2_train.analysis.tokens import AnnotatedTurn


def turns() -> list[AnnotatedTurn]:
    """Ten model tokens, so two high ones: a forking word in a reflection (3 nats) and a piece of code (2 nats)."""
    first = AnnotatedTurn(
        "model", ["Let", " x", "f(", "1", ")"], surprisal=[0.5, 0.1, 2.0, 0.0, 0.0], entropy=[9.0] * 5,
        regions=["reasoning", "reasoning", "code", "code", "code"], forking=[False] * 5,
    )  # fmt: skip
    last = AnnotatedTurn(
        "model", ["Wait", " so", " 1", "<answer>", "1"], surprisal=[3.0, 1.0, 0.0, 0.0, 0.4], entropy=[9.0] * 5,
        regions=["reflection", "reflection", "reflection", "answer", "answer"], forking=[True] + [False] * 4,
    )  # fmt: skip
    return [first, AnnotatedTurn("tool", ["1"]), last]


def test_figures_of_each_kind() -> None:
    study = Study("surprisal")
    study.add(turns())
    found = study.summary()
    assert (found["measure"], found["trajectories"]) == ("surprisal", 1)
    kinds = found["kinds"]
    assert {name: row["tokens"] for name, row in kinds.items()} == {
        "reasoning": 2, "reflection": 3, "code": 3, "answer": 2, "forking": 1, "all": 10
    }  # fmt: skip
    assert kinds["reflection"]["mean"] == pytest.approx(4 / 3)
    assert kinds["all"]["mean"] == pytest.approx(0.7)
    assert kinds["code"]["high_share"] == pytest.approx(1 / 3)
    assert {name: row["share_of_high"] for name, row in kinds.items()} == {
        "reasoning": 0, "reflection": 0.5, "code": 0.5, "answer": 0, "forking": 0.5, "all": 1
    }  # fmt: skip


def test_the_measures_are_not_mixed() -> None:
    study = Study("entropy")
    study.add(turns())
    assert study.summary()["kinds"]["all"]["mean"] == 9.0


def test_what_was_not_scored_is_not_counted() -> None:
    study = Study("entropy")
    study.add([AnnotatedTurn("model", ["a"], surprisal=[1.0], regions=["reasoning"], forking=[False])])
    found = study.summary()
    assert found["trajectories"] == 0
    assert found["kinds"]["all"] == {"tokens": 0, "mean": None, "high_share": None, "share_of_high": None}


def test_words_are_ranked_by_their_mean_when_seen_often() -> None:
    study = Study("surprisal")
    for _ in range(LEAST_OCCURRENCES):
        study.add(turns())
    study.add([AnnotatedTurn("model", ["rare"], surprisal=[8.0], regions=["reasoning"], forking=[False])])
    assert [(word.text, word.occurrences) for word in study.top_words()] == [("wait", 5), ("so", 5), ("let", 5)]
