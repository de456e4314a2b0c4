"""The rules for answers: integers of limited length that sampled answers confirm (paper §4.2).

`pipeline.py` applies them to training problems, never to benchmarks.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from rstar2_train.data.prepare.records import RemovedRow
from rstar2_train.data.readers import DataError, read_rows, text_field
from rstar2_train.rewards.verify import canonical_integer
from rstar2_train.utils.text import short_repr

_SCIENTIFIC = re.compile(r"[+-]?\d+(?:\.\d*)?e\+?(\d+)", re.IGNORECASE)


def integer_answer(answer: str, *, max_digits: int) -> str | RemovedRow:
    """Return the answer as `-?digits`, or the removal. Accepts the forms of `rewards.verify.canonical_integer`."""
    stripped = answer.strip()
    scientific = _SCIENTIFIC.fullmatch(stripped)
    exponent = scientific.group(1).lstrip("0") if scientific else ""
    # An exponent of ten digits exceeds any limit. It is not converted to an int: it may have millions of digits itself.
    if len(exponent) > 9 or (exponent and int(exponent) >= max_digits):
        return RemovedRow("enormous-answer", short_repr(stripped))
    integer = canonical_integer(stripped)
    if integer is None:
        return RemovedRow("not-an-integer", short_repr(stripped))
    digits = len(integer.lstrip("-"))
    if digits > max_digits:
        return RemovedRow("enormous-answer", f"{digits} digits: {integer[:12]}...")
    return integer


class SampledAnswers:
    """The answers that a model sampled for each problem."""

    def __init__(self, path: Path, *, agree: int) -> None:
        """Read rows `{id, answers: [text, ...]}` with ids of `prepare`, and store the answers sampled `agree` times.

        Raises DataError, which names file and line, for a row of another form or a duplicate id.
        """
        self._agree = agree
        self._frequent: dict[str, tuple[str, ...]] = {}
        for line, row in read_rows(path):
            where = f"{path}:{line}"
            name = text_field(row, "id", where)
            answers = row.get("answers")
            if not isinstance(answers, list):
                raise DataError(f"{where}: answers must be a list of texts, got {short_repr(answers)}")
            if name in self._frequent:
                raise DataError(f"{where}: duplicate id {name!r}; put all answers of a problem into one row")
            counts = Counter(canonical_integer(str(answer)) for answer in answers)
            self._frequent[name] = tuple(text for text, n in counts.items() if text is not None and n >= agree)

    def check(self, problem_id: str, answer: str) -> RemovedRow | None:
        """Return the removal of a problem with the canonical `answer`; None if the sampled answers confirm it."""
        frequent = self._frequent.get(problem_id)
        if frequent is None:
            return RemovedRow("not-sampled", "no row with this id")
        if answer in frequent:
            return None
        sampled = ", ".join(frequent) or "no integer"
        return RemovedRow("unverified", f"the label is {answer}; sampled at least {self._agree} times: {sampled}")
