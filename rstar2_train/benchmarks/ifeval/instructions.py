"""IFEval: problems that checkers score by instructions instead of a known answer.

The list of instructions, as text (`encode_instructions`), takes the place of the known answer. The verdict is the
benchmark's strict prompt accuracy: correct if the unmodified text follows every instruction. The outcome of each
instruction is stored as the sample's `answer`, for the figures of `figures.py`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any, Literal, NamedTuple, get_args

from rstar2_train.benchmarks.ifeval.instruction_checkers import CHECKERS, RELATIONS, Kind
from rstar2_train.rewards.verdict import Grade

InstructionOutcome = Literal["strict", "loose", "no"]
"""`strict`: the unmodified text follows it. `loose`: only without its first line, last line or asterisks."""
_GOLD = '{"instructions": '
"""Start of the text of encoded instructions; no known answer starts with it."""


class Instruction(NamedTuple):
    """One instruction for a response."""

    id: str
    """A key of CHECKERS."""
    arguments: Mapping[str, Any]


def read_instructions(value: object) -> list[Instruction]:
    """Return the instructions `[{id, ...arguments}]` of a row; null arguments are ignored.

    Raises ValueError for an unknown id, or a missing, unknown or mistyped argument.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("instructions must be a list of {id, ...arguments}, with at least one")
    return [_instruction(item, f"instructions[{index}]") for index, item in enumerate(value)]


def encode_instructions(instructions: Sequence[Instruction]) -> str:
    """Return the text that takes the place of the known answer."""
    rows = [{"id": instruction.id, **instruction.arguments} for instruction in instructions]
    return f"{_GOLD}{json.dumps(rows, ensure_ascii=False, sort_keys=True)}}}"


def holds_instructions(text: str) -> bool:
    """Return whether the text of a known answer encodes instructions."""
    return text.startswith(_GOLD)


def decode_instructions(text: str) -> list[Instruction]:
    """Return the instructions of a text of `encode_instructions`. Raises ValueError for other texts."""
    if not holds_instructions(text):
        raise ValueError("not a list of instructions")
    return read_instructions(json.loads(text)["instructions"])


def describe_instructions(gold: str) -> str:
    """Return encoded instructions in readable form: `punctuation:no_comma; keywords:existence (...)`."""
    parts = []
    for instruction in decode_instructions(gold):
        arguments = ", ".join(f"{name} {shorten(str(value), 60)}" for name, value in instruction.arguments.items())
        parts.append(f"{instruction.id} ({arguments})" if arguments else instruction.id)
    return "; ".join(parts)


def check_instructions(text: str, instructions: Sequence[Instruction]) -> list[InstructionOutcome]:
    """Return the outcome of each instruction for `text`. A blank text follows none."""
    variants = _variants(text)
    return [_outcome(instruction, text, variants) for instruction in instructions]


def score_instructions(text: str, instructions: Sequence[Instruction]) -> Grade:
    """Return the verdict on the visible text of a response; the answer holds the outcomes for `decode_outcomes`."""
    if not text.strip():
        return Grade.exact("no_answer", None)
    outcomes = check_instructions(text, instructions)
    return Grade.exact("correct" if set(outcomes) == {"strict"} else "wrong", ", ".join(outcomes))


def decode_outcomes(answer: str | None, instructions: Sequence[Instruction]) -> list[InstructionOutcome]:
    """Return the outcome of each instruction from the answer of a scored sample; without an answer, all are `no`."""
    outcomes = answer.split(", ") if answer else ["no"] * len(instructions)
    known: dict[str, InstructionOutcome] = {outcome: outcome for outcome in get_args(InstructionOutcome)}
    return [known[outcome] for outcome in outcomes]


def _outcome(instruction: Instruction, text: str, variants: Sequence[str]) -> InstructionOutcome:
    follows = CHECKERS[instruction.id].follows
    if text.strip() and follows(text, **instruction.arguments):
        return "strict"
    return "loose" if any(follows(variant, **instruction.arguments) for variant in variants) else "no"


def _variants(text: str) -> list[str]:
    """Return the variants of the loose accuracy: without first or last line (such as "Sure"), without asterisks."""
    lines = text.split("\n")
    shorter = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    unmarked = [variant.replace("*", "") for variant in (text, *shorter)]
    return [variant for variant in dict.fromkeys((*shorter, *unmarked)) if variant.strip()]


def _instruction(value: object, where: str) -> Instruction:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object {{id, ...arguments}}")
    name = value.get("id")
    if not isinstance(name, str) or name not in CHECKERS:
        raise ValueError(f"{where}: unknown instruction {name!r}; known: {', '.join(CHECKERS)}")
    given = {key: argument for key, argument in value.items() if key != "id" and argument is not None}
    wanted = CHECKERS[name].arguments
    if set(given) != set(wanted):
        takes, has = ", ".join(wanted) or "no arguments", ", ".join(given) or "none"
        raise ValueError(f"{where}: {name} takes {takes}; given: {has}")
    return Instruction(name, {key: _argument(given[key], kind, f"{where}.{key}") for key, kind in wanted.items()})


def _argument(value: object, kind: Kind, where: str) -> object:
    """Return the argument after a check of its type; an integer may be written as `3.0`."""
    if kind == "count":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{where} must be a non-negative integer, got {value!r}")
        return value
    if kind == "texts":
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(text, str) and text.strip() for text in value)
        ):
            raise ValueError(f"{where} must be a list of texts, got {value!r}")
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a text, got {value!r}")
    if kind == "letter" and len(value) != 1:
        raise ValueError(f"{where} must be one character, got {value!r}")
    if kind == "relation" and value not in RELATIONS:
        raise ValueError(f"{where} must be {' or '.join(RELATIONS)}, got {value!r}")
    return value
