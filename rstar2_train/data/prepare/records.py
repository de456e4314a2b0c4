"""What the layouts make of a row of a public dataset, and the names of the rules that remove rows.

Between the layouts (layouts.py, conversations.py), which make rows, and pipeline.py, which compares and writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rstar2_train.data.readers import DataError

RULES: Mapping[str, str] = {
    "no-problem": "the problem is empty",
    "no-gold-answer": "the source itself has no checked answer to the problem (paper §4.2: unverifiable answers)",
    "enormous-answer": "the answer has so many digits that a verifier would time out on it (paper §4.2)",
    "not-an-integer": "the answer is not a whole number (paper §4.2)",
    "not-a-conversation": "no user turn that is followed by an assistant turn",
    "reasoning": "the assistant's turn is long reasoning; the cold start is without (paper §4.1)",
    "unreadable-call": "a tool call or a tool's signature cannot be read",
    "undeclared-tool": "a call of a tool that the conversation does not declare",
    "no-python": "no Python program to make a tool call of",
    "not-text": "half a surrogate pair, which is no character",
    "repeated": "the same once more",
    "contaminated": "eight words in a row are those of a benchmark (paper §5.1)",
    "unverified": "too few sampled answers agree with the label (paper §4.2: at least 2 of 16)",
    "near-duplicate": "another problem in slightly different words, with the same numbers and the same answer",
    "not-sampled": "the file of sampled answers has none for it",
}
"""Every rule, in the order in which they are applied."""

Holds = Literal["training problems", "benchmark", "conversations"]


Row = dict[str, Any]
"""A row in the project's own form, but for `id` and `source`: `{problem, answer}` or `{messages}`."""


def as_json(row: object, **options: Any) -> str:
    """A row in JSON; what JSON has no form for, such as a Parquet file's dates, as text. `options`: of json.dumps."""
    return json.dumps(row, ensure_ascii=False, default=str, **options)


def identity(row: Row) -> str:
    """16 hexadecimal digits that two rows share when they are the same.

    Raises UnicodeEncodeError for a text with half a surrogate pair, which cannot be written nor tokenised.
    """
    return hashlib.blake2b(as_json(row, sort_keys=True).encode(), digest_size=8).hexdigest()


def compared_text(row: Row, where: str) -> str:
    """What of a row is compared with benchmarks and other rows: the problem, or all that the user says.

    Raises DataError, naming `where`, for a row that has neither.
    """
    messages = row.get("messages")
    if isinstance(messages, list):
        said = (message for message in messages if isinstance(message, dict) and message.get("role") == "user")
        return "\n".join(str(message.get("content")) for message in said)
    for name in ("problem", "question"):
        if isinstance(row.get(name), str):
            return str(row[name])
    raise DataError(f"{where}: no problem, question or messages; the fields are {', '.join(row) or 'none'}")


@dataclass(frozen=True, slots=True)
class RemovedRow:
    """A row that a rule does not let through."""

    rule: str
    """A key of RULES."""
    why: str
    """What it was about this row, in a few words."""


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """The columns of a public dataset, and what becomes of a row of it."""

    name: str
    dataset: str
    """Where the layout is from, as users know it."""
    holds: Holds
    columns: tuple[str, ...]
    """The columns that `convert` looks at; of a Parquet file no other is read."""
    convert: Callable[[dict[str, Any], str], Row | RemovedRow]
    """`convert(row, where)`; raises DataError, naming `where`, for a row that has not this layout."""
    sampled: bool = False
    """Its labels are in doubt: `--sampled` applies to it (paper §4.2: to OpenMathReasoning)."""
