"""The shared types of the package, and the names of the rules that remove rows.

The layouts (`layouts.py`, `conversations.py`) convert rows; `pipeline.py` compares and writes them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from rstar2_train.data.demonstrations import REPEATED_FIELDS, ROW_FIELDS, has_effect
from rstar2_train.data.json_values import WrittenFloat, WrittenInteger
from rstar2_train.data.problems import LOST_FIELDS
from rstar2_train.data.readers import DataError, is_gap, read_rows, text_field
from rstar2_train.rewards.answer_forms import answer_forms
from rstar2_train.utils.spelling import spelled
from rstar2_train.utils.text import short_repr

RULES: Mapping[str, str] = {
    "no-problem": "The problem text is empty.",
    "no-gold-answer": "The source has no verified answer to the problem (paper §4.2: unverifiable answers).",
    "enormous-answer": "The answer has too many digits; a verifier would time out (paper §4.2).",
    "not-an-integer": "The answer is not an integer (paper §4.2).",
    "not-a-conversation": "No user message is followed by an assistant message, or a message is empty.",
    "reasoning": "The assistant message is long reasoning, which the cold start excludes (paper §4.1).",
    "unreadable-call": "A tool call or a tool signature cannot be parsed.",
    "undeclared-tool": "The conversation calls a tool that it does not declare.",
    "no-python": "The solution has no Python program to convert to a tool call.",
    "not-text": "The text contains half of a surrogate pair or a control character, or is too long.",
    "repeated": "Another row has the same content.",
    "contaminated": "Eight consecutive words also occur in a benchmark (paper §5.1).",
    "unverified": "Too few sampled answers equal the label (paper §4.2: at least 2 of 16).",
    "near-duplicate": "Another problem has similar wording, the same numbers and the same answer.",
    "not-sampled": "The file of sampled answers has no row for the problem.",
}
"""Rule -> description, in the order of application."""

DatasetKind = Literal["training problems", "benchmark", "conversations"]

KEPT_BY_STAGES = ("reward", "data", "tools", "functions", "files", *(form.field for form in answer_forms()))
"""Fields of own problems that a stage reads, and the preparation does not write. An empty list of tools is one."""
LOST_COLUMNS: Mapping[DatasetKind, tuple[str, ...]] = {
    "training problems": (*LOST_FIELDS, *KEPT_BY_STAGES),
    "benchmark": (*LOST_FIELDS, *KEPT_BY_STAGES),
    "conversations": (*ROW_FIELDS, "messages", "tools"),
}
"""Columns that would change what a stage learns: one that its layout does not read is refused if it has content."""

Row = dict[str, Any]
"""A row in the format of this project, without `id` and `source`: `{problem, answer}` or `{messages}`."""


def to_json(row: object, **options: Any) -> str:
    """Return a row as JSON. Values without a JSON type, such as dates of a Parquet file, become text. `options`: of
    json.dumps.
    """
    return json.dumps(row, ensure_ascii=False, default=str, **options)


def exact_json(row: Row, where: str) -> str:
    """Return a row as JSON that is read as the same row, with all digits of its numbers.

    A field that is not a number (NaN), as in a column with gaps, becomes null. Raises DataError, which names `where`
    and the field, for another value that JSON cannot write.
    """
    fields = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
    digits: dict[str, str] = {}
    try:
        text = json.dumps(_marked(fields, where, digits), ensure_ascii=False)
    except RecursionError:
        raise DataError(f"{where}: too many nested objects or arrays; remove the row") from None
    return _MARK.sub(lambda match: digits[match[0]], text) if digits else text


_MARK_PREFIX = f"number-{uuid.uuid4().hex}-"
_MARK = re.compile(f'"{_MARK_PREFIX}[0-9]+"')


def _marked(value: Any, field: str, digits: dict[str, str]) -> Any:
    """Return a value with a mark in place of each number that `json` would round; `digits` has the numbers."""
    match value:
        case dict():
            return {key: _marked(part, f"{field}: {key}", digits) for key, part in value.items()}
        case list():
            return [_marked(part, f"{field}[{at}]", digits) for at, part in enumerate(value)]
        case WrittenFloat():
            written = value.digits
        case WrittenInteger():
            written = str(value)
        case Decimal() if value.is_finite():
            written = str(value)
        case None | str() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            raise DataError(f"{field}: {short_repr(value)} has no form in JSON: write it as text or remove it")
    mark = f"{_MARK_PREFIX}{len(digits)}"
    digits[f'"{mark}"'] = written
    return mark


def content_hash(row: Row) -> str:
    """Return 16 hexadecimal digits of the content: equal rows have equal hashes.

    Raises UnicodeEncodeError for a text with half of a surrogate pair, which can be neither written nor tokenised.
    """
    return hashlib.blake2b(to_json(row, sort_keys=True).encode(), digest_size=8).hexdigest()


def comparison_text(row: Row, where: str) -> str:
    """Return the text to compare with benchmarks and other rows: the problem, the question, and all user messages.

    Raises DataError, which names `where`, for a row with none of them, and for one that has no text.
    """
    texts = [text_field(row, name, where) for name in ("problem", "question") if not is_gap(row.get(name))]
    if not is_gap(row.get("messages")):
        texts += _user_texts(row["messages"], f"{where}: messages")
    if not texts:
        raise DataError(f"{where}: no problem, question or messages; the fields are {', '.join(row) or 'none'}")
    return "\n".join(texts)


def _user_texts(messages: Any, field: str) -> list[str]:
    """Return the texts of the messages of role user; of a list of parts those of its texts. Raises DataError."""
    valid = isinstance(messages, list) and all(isinstance(message, dict) for message in messages)
    user = [message.get("content") for message in messages if message.get("role") == "user"] if valid else []
    contents = ["\n".join(map(_part_text, value)) if isinstance(value, list) else value for value in user]
    if not contents or not all(isinstance(content, str) for content in contents):
        raise DataError(
            f"{field} must be a list of {{role, content}} with texts of role user, got {short_repr(messages)}"
        )
    return contents


def _part_text(part: Any) -> str:
    return str(part.get("text") or "") if isinstance(part, dict) else str(part)


@dataclass(frozen=True, slots=True)
class RemovedRow:
    """The removal of a row by a rule."""

    rule: str
    """A key of RULES."""
    reason: str
    """The finding in this row, in a few words."""


Convert = Callable[[dict[str, Any], str], Row | RemovedRow]
"""`convert(row, where)`. Raises DataError, which names `where`, for a row without the columns of its layout."""


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """The columns of a public dataset, and the conversion of its rows."""

    name: str
    dataset: str
    """Names of the datasets with this layout."""
    kind: DatasetKind
    columns: tuple[str, ...]
    """The columns that `convert` reads. Of a Parquet file only these and `LOST_COLUMNS` are loaded."""
    convert: Convert
    sampled: bool = False
    """Whether `--sampled` verifies its labels (paper §4.2: OpenMathReasoning)."""
    has_rows: Callable[[Path], bool] = lambda _: True
    """Whether a file has rows of this layout; others are skipped."""
    answers: Callable[[Path], Path | None] = lambda _: None
    """The file with the answers to the rows of a file; None: the rows have them."""

    def read(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number, row) of a file, with the columns of the row with the same `id` in the file of answers.

        The file of answers is in memory. Raises DataError, as `read_rows`.
        """
        source = self.answers(path)
        answers = {str(row.get("id")): row for _, row in read_rows(source)} if source else {}
        compared = REPEATED_FIELDS if self.kind == "conversations" else ()
        for line, row in read_rows(path, columns=self.columns, also=(*LOST_COLUMNS[self.kind], *compared)):
            yield line, answers.get(str(row.get("id")), {}) | row if answers else row

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the names of columns that `convert` does not read."""
        names = list(names)
        used = {name for name, _ in spelled(names, self.columns)}
        return [name for name in names if name not in used]

    def check_unused(self, row: Row, where: str) -> None:
        """Raise DataError for a column with content that would be lost, although a stage would learn from it."""
        for name, field in spelled(self.unused(row), LOST_COLUMNS[self.kind]):
            if has_effect(field, row[name]):
                raise DataError(
                    f"{where}: {name} is not read, and would be lost: remove the column, or write its content into the "
                    "columns of the layout"
                )
