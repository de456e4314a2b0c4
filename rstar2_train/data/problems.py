"""Reads problems and demonstrations from JSONL, JSON, CSV, Parquet or Arrow files, and says exactly which row is wrong.

The files that a manifest names end here: they are checked before a job starts, and every stage driver reads its
`data`, through these functions, which hold one row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.data.readers import DataError, brief, read_rows, text_field
from rstar2_train.rewards.instructions import as_gold, is_gold, of_gold, read_instructions
from rstar2_train.utils.text import half_character

__all__ = ["ROLES", "Conversation", "DataError", "Problem", "read_conversations", "read_problems"]

ROLES = ("system", "user", "assistant", "tool")
LONGEST_TEXT = 2**20
"""Characters of a problem or message: many times what a policy can take. Tokenizers end the program at a few more."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a known answer, or a request with instructions that programs check."""

    id: str
    problem: str
    answer: str
    """The known answer; or the instructions, as `reward.instructions.as_gold` writes them."""
    slice: str = ""
    """Name of the group it is reported under, such as a level; empty: none."""
    hard: bool = False
    """Counted again in the report's pass@1 of hard problems."""

    @property
    def as_is(self) -> bool:
        """Asked in its own words alone, without the job's prompts: those ask for a boxed answer, which it has not."""
        return is_gold(self.answer)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A demonstration: chat messages, with the assistant's text exactly as the policy should write it."""

    messages: tuple[dict[str, Any], ...]
    level: int = 0
    """Difficulty, 1 the first; 0 when the file does not say. See `SFTStage.shortest_first_steps`."""


def read_problems(path: Path) -> Iterator[Problem]:
    """The problems of a file (`rows.SUFFIXES`) of rows `{problem, answer, id?, slice?, hard?}`, in file order.

    A row without `id` gets `<file stem>-<line>`; a number is taken as an answer too. Instead of `answer` a row may have
    `instructions`, a list of `{id, ...arguments}` (`rewards/instruction_checkers.py`).
    Raises DataError, naming file and line, for a row that is not usable, for an id used twice and for an empty file.
    """
    seen: dict[str, int] = {}
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        problem = Problem(
            id=text_field(row, "id", where, default=f"{path.stem}-{line}"),
            problem=_readable(text_field(row, "problem", where), f"{where}: problem"),
            answer=_answer(row, where),
            slice=text_field(row, "slice", where, default=""),
            hard=_flag(row, "hard", where),
        )
        if problem.id in seen:
            raise DataError(
                f"{where}: id {problem.id!r} is already used in line {seen[problem.id]}; ids must be unique"
            )
        seen[problem.id] = line
        yield problem


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The demonstrations of a file (`rows.SUFFIXES`) of rows `{messages: [{role, content}], level?}`.

    Raises DataError, naming file and line, for a row without an assistant message, an unknown role or a
    message without text.
    """
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        level = row.get("level") or 0
        if not isinstance(level, int):
            raise DataError(f"{where}: level is {level!r}; it must be a whole number, 1 for the first difficulty")
        yield Conversation(messages=_messages(row, where), level=level)


def _answer(row: dict[str, Any], where: str) -> str:
    """What the problem is graded by."""
    instructions = row.get("instructions")
    try:
        if instructions is not None:
            if row.get("answer") is not None:
                raise ValueError("a row has an answer or instructions, not both")
            return as_gold(read_instructions(instructions))
        answer = text_field(row, "answer", where)
        return as_gold(of_gold(answer)) if is_gold(answer) else answer
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{where}: {error}") from error


def _messages(row: dict[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: messages must be a list of {{role, content}}, got {brief(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(f"{where}: messages[{index}] must be an object, got {brief(message)}")
        if message.get("role") not in ROLES:
            raise DataError(f"{where}: messages[{index}].role is {message.get('role')!r}; allowed: {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise DataError(f"{where}: messages[{index}] has no text in content; tool calls are written out in it too")
        _readable(message["content"], f"{where}: messages[{index}].content")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(f"{where}: no assistant message, so there is nothing to learn from")
    # Parquet fills the fields that other rows have with None; a chat template would take those for set.
    return tuple({key: value for key, value in message.items() if value is not None} for message in messages)


def _readable(text: str, what: str) -> str:
    """The text itself. Raises DataError for one that no tokenizer takes."""
    if half := half_character(text):
        raise DataError(f"{what} holds {half!a}, half a surrogate pair, which is no character")
    if len(text) > LONGEST_TEXT:
        raise DataError(
            f"{what} has {len(text):,} characters, more than the {LONGEST_TEXT:,} that are taken: drop the row"
        )
    return text


def _flag(row: dict[str, Any], field: str, where: str) -> bool:
    value = row.get(field)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{where}: {field} must be true or false, got {brief(value)}")
    return bool(value)
