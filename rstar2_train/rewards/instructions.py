"""A problem that is scored by programs, one an instruction, instead of by a known answer: IFEval.

What stands where others have their known answer is the list of instructions as text (`as_gold`): so problems,
trajectories, stored samples and filters carry it without knowing of it, and `grade.py` alone asks what it is. The
verdict is the benchmark's strict accuracy of prompts: right when every instruction is followed as the text stands.
What became of each instruction is the sample's `answer`, one word of Followed each, for the figures of
`evaluation/ifeval.py`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any, Literal, NamedTuple, get_args

from rstar2_train.rewards.instruction_checkers import CHECKERS, RELATIONS, Kind
from rstar2_train.rewards.verify import Score

Followed = Literal["strict", "loose", "no"]
"""`strict`: by the text as it is. `loose`: only without its first line, its last line or its asterisks."""
_GOLD = '{"instructions": '
"""How the text begins that stands for instructions; no known answer does."""


class Instruction(NamedTuple):
    """What a text is asked to follow."""

    id: str
    """A name in CHECKERS."""
    arguments: Mapping[str, Any]


def read_instructions(value: object) -> list[Instruction]:
    """The instructions `[{id, ...arguments}]` of a row; arguments that are null are none.

    Raises ValueError for anything else: an unknown id, an argument that is missing, unknown or of another type.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("instructions must be a list of {id, ...arguments}, with at least one")
    return [_instruction(one, f"instructions[{index}]") for index, one in enumerate(value)]


def as_gold(instructions: Sequence[Instruction]) -> str:
    """The text that stands for these instructions where others have a known answer."""
    rows = [{"id": one.id, **one.arguments} for one in instructions]
    return f"{_GOLD}{json.dumps(rows, ensure_ascii=False, sort_keys=True)}}}"


def is_gold(text: str) -> bool:
    """Whether a known answer is one that stands for instructions."""
    return text.startswith(_GOLD)


def of_gold(text: str) -> list[Instruction]:
    """The instructions that `as_gold` wrote. Raises ValueError for another text."""
    if not is_gold(text):
        raise ValueError("not a list of instructions")
    return read_instructions(json.loads(text)["instructions"])


def described(gold: str) -> str:
    """The instructions of a text that `as_gold` wrote, for people: `punctuation:no_comma; keywords:existence (...)`."""
    parts = []
    for one in of_gold(gold):
        arguments = ", ".join(f"{name} {shorten(str(value), 60)}" for name, value in one.arguments.items())
        parts.append(f"{one.id} ({arguments})" if arguments else one.id)
    return "; ".join(parts)


def follow(text: str, instructions: Sequence[Instruction]) -> list[Followed]:
    """What became of each instruction in `text`. A text of blanks follows none."""
    variants = _variants(text)
    return [_followed(one, text, variants) for one in instructions]


def score(text: str, instructions: Sequence[Instruction]) -> Score:
    """The verdict on `text`, what its reader sees of a response; the answer is for `followed_of`."""
    if not text.strip():
        return Score("no_answer", None)
    followed = follow(text, instructions)
    return Score("correct" if set(followed) == {"strict"} else "wrong", ", ".join(followed))


def followed_of(answer: str | None, instructions: Sequence[Instruction]) -> list[Followed]:
    """What became of each instruction, from the answer of a scored sample; one without an answer followed none."""
    words = answer.split(", ") if answer else ["no"] * len(instructions)
    known: dict[str, Followed] = {word: word for word in get_args(Followed)}
    return [known[word] for word in words]


def _followed(one: Instruction, text: str, variants: Sequence[str]) -> Followed:
    follows = CHECKERS[one.id].follows
    if text.strip() and follows(text, **one.arguments):
        return "strict"
    return "loose" if any(follows(variant, **one.arguments) for variant in variants) else "no"


def _variants(text: str) -> list[str]:
    """What the loose accuracy looks at as well: without a first or last line that says "Sure" or so, unmarked."""
    lines = text.split("\n")
    shorter = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    unmarked = [variant.replace("*", "") for variant in (text, *shorter)]
    return [variant for variant in dict.fromkeys((*shorter, *unmarked)) if variant.strip()]


def _instruction(value: object, where: str) -> Instruction:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object {{id, ...arguments}}")
    name = value.get("id")
    if not isinstance(name, str) or name not in CHECKERS:
        raise ValueError(f"{where}: there is no instruction {name!r}; there are: {', '.join(CHECKERS)}")
    given = {key: argument for key, argument in value.items() if key != "id" and argument is not None}
    wanted = CHECKERS[name].arguments
    if set(given) != set(wanted):
        takes, has = ", ".join(wanted) or "no arguments", ", ".join(given) or "none"
        raise ValueError(f"{where}: {name} takes {takes}; given: {has}")
    return Instruction(name, {key: _argument(given[key], kind, f"{where}.{key}") for key, kind in wanted.items()})


def _argument(value: object, kind: Kind, where: str) -> object:
    """The argument, checked; a whole number may be written as `3.0`."""
    if kind == "count":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{where} must be a whole number from 0, got {value!r}")
        return value
    if kind == "texts":
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one.strip() for one in value):
            raise ValueError(f"{where} must be a list of texts, got {value!r}")
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a text, got {value!r}")
    if kind == "letter" and len(value) != 1:
        raise ValueError(f"{where} must be one character, got {value!r}")
    if kind == "relation" and value not in RELATIONS:
        raise ValueError(f"{where} must be {' or '.join(RELATIONS)}, got {value!r}")
    return value
