"""The figures of the study, compared with manual counts."""

import pytest

from rstar2_train.analysis.study import MIN_OCCURRENCES, Study
from rstar2_train.analysis.tokens import AnnotatedTurn


def turns() -> list[AnnotatedTurn]:
    """Return ten model tokens, of which two are high: a forking word in a reflection (3 nats) and code (2 nats)."""
    first = AnnotatedTurn(
        "model", ["Let", " x", "f(", "1", ")"], surprisal=[0.5, 0.1, 2.0, 0.0, 0.0], entropy=[9.0] * 5,
        regions=["reasoning", "reasoning", "code", "code", "code"], forking=[False] * 5,
    )  # fmt: skip
    last = AnnotatedTurn(
        "model", ["Wait", " so", " 1", "<answer>", "1"], surprisal=[3.0, 1.0, 0.0, 0.0, 0.4], entropy=[9.0] * 5,
        regions=["reflection", "reflection", "reflection", "answer", "answer"], forking=[True] + [False] * 4,
    )  # fmt: skip
    return [first, AnnotatedTurn("tool", ["1"]), last]


def test_summary_counts_each_kind_of_token() -> None:
    """Tokens, mean and high tokens of each kind."""
    study = Study("surprisal")
    study.add(turns())
    summary = study.summary()
    assert (summary["measure"], summary["trajectories"]) == ("surprisal", 1)
    kinds = summary["kinds"]
    assert {name: row["tokens"] for name, row in kinds.items()} == {
        "reasoning": 2, "reflection": 3, "code": 3, "answer": 2, "forking": 1, "all": 10
    }  # fmt: skip
    assert kinds["reflection"]["mean"] == pytest.approx(4 / 3)
    assert kinds["all"]["mean"] == pytest.approx(0.7)
    assert kinds["code"]["high_share"] == pytest.approx(1 / 3)
    assert {name: row["share_of_high"] for name, row in kinds.items()} == {
        "reasoning": 0, "reflection": 0.5, "code": 0.5, "answer": 0, "forking": 0.5, "all": 1
    }  # fmt: skip


def test_summary_uses_its_measure_only() -> None:
    """A study counts one measure only."""
    study = Study("entropy")
    study.add(turns())
    assert study.summary()["kinds"]["all"]["mean"] == 9.0


def test_add_without_entropies_does_not_count() -> None:
    """A trajectory without entropies is not in the entropy study."""
    study = Study("entropy")
    study.add([AnnotatedTurn("model", ["a"], surprisal=[1.0], regions=["reasoning"], forking=[False])])
    summary = study.summary()
    assert summary["trajectories"] == 0
    assert summary["kinds"]["all"] == {"tokens": 0, "mean": None, "high_share": None, "share_of_high": None}


def test_top_words_ranks_frequent_words_by_mean() -> None:
    """Frequent words are ranked by their mean."""
    study = Study("surprisal")
    for _ in range(MIN_OCCURRENCES):
        study.add(turns())
    study.add([AnnotatedTurn("model", ["rare"], surprisal=[8.0], regions=["reasoning"], forking=[False])])
    assert [(word.text, word.occurrences) for word in study.top_words()] == [("wait", 5), ("so", 5), ("let", 5)]
