"""Known answers that are no text to compare with: a benchmark brings their form (`rstar2_train.benchmarks`).

A row has a field in place of `answer`. Its encoded text takes the place of the known answer, so that problems,
trajectories, stored samples and filters carry it without special code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rstar2_train.rewards.verdict import Grade
from rstar2_train.utils.plugins import benchmark_plugins


class AnswerForm(Protocol):
    """A form of known answers."""

    field: str
    """Field of a row that has the value."""

    def holds(self, answer: str) -> bool:
        """Return whether an encoded answer has this form."""
        ...

    def encode(self, value: object) -> str:
        """Return the text of the value of a row. Raises ValueError for an invalid one."""
        ...

    def check(self, answer: str) -> str:
        """Return an encoded answer in its usual form. Raises ValueError for an invalid one."""
        ...

    def describe(self, answer: str) -> str:
        """Return an encoded answer in readable form."""
        ...

    def grade(self, last_turn: str, answer: str) -> Grade:
        """Return the grade of a response by the text of its last turn."""
        ...


def answer_forms() -> tuple[AnswerForm, ...]:
    """Return all forms."""
    return benchmark_plugins("answers")


def form_of(answer: str) -> AnswerForm | None:
    """Return the form of an encoded answer; None for a plain one."""
    return next((form for form in answer_forms() if form.holds(answer)), None)


def form_of_row(row: Mapping[str, Any]) -> AnswerForm | None:
    """Return the form whose field a row has; None without one."""
    return next((form for form in answer_forms() if row.get(form.field) is not None), None)
