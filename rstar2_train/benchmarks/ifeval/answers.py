"""The form of IFEval's known answers: a list of instructions."""

from __future__ import annotations

from rstar2_train.benchmarks.ifeval.instructions import (
    decode_instructions,
    describe_instructions,
    encode_instructions,
    holds_instructions,
    read_instructions,
    score_instructions,
)
from rstar2_train.benchmarks.ifeval.visible_text import visible_text
from rstar2_train.rewards.answer_forms import AnswerForm
from rstar2_train.rewards.verdict import Grade


class InstructionAnswers:
    """Instructions in place of a known answer."""

    field = "instructions"

    def holds(self, answer: str) -> bool:
        """Return whether an answer encodes instructions."""
        return holds_instructions(answer)

    def encode(self, value: object) -> str:
        """Return the text of the instructions of a row. Raises ValueError for invalid ones."""
        return encode_instructions(read_instructions(value))

    def check(self, answer: str) -> str:
        """Return encoded instructions in their usual form. Raises ValueError for invalid ones."""
        return encode_instructions(decode_instructions(answer))

    def describe(self, answer: str) -> str:
        """Return the instructions in readable form."""
        return describe_instructions(answer)

    def grade(self, last_turn: str, answer: str) -> Grade:
        """Return the grade of a response by its visible text."""
        return score_instructions(visible_text(last_turn), decode_instructions(answer))


PLUGIN: AnswerForm = InstructionAnswers()
