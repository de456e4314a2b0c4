"""The rules on answers: whole numbers, not enormous ones, and confirmed by sampling (paper §4.2).

Applied by pipeline.py to problems that are trained on, never to benchmarks.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from rstar2_train.data.prepare.records import RemovedRow
from rstar2_train.data.readers import DataError, brief, read_rows, text_field
from rstar2_train.rewards.verify import canonical_integer

_SCIENTIFIC = re.compile(r"[+-]?\d+(?:\.\d*)?e\+?(\d+)", re.IGNORECASE)


def checked_integer(answer: str, *, max_digits: int) -> str | RemovedRow:
    """The answer as `-?digits`, or why the problem is removed. Takes what `reward.verify.canonical_integer` takes."""
    plain = answer.strip()
    scientific = _SCIENTIFIC.fullmatch(plain)
    exponent = scientific.group(1).lstrip("0") if scientific else ""
    # An exponent of ten digits is above any limit, and is not made an int: it may itself be enormous.
    if len(exponent) > 9 or (exponent and int(exponent) >= max_digits):
        return RemovedRow("enormous-answer", brief(plain))
    integer = canonical_integer(plain)
    if integer is None:
        return RemovedRow("not-an-integer", brief(plain))
    digits = len(integer.lstrip("-"))
    if digits > max_digits:
        return RemovedRow("enormous-answer", f"{digits} digits: {integer[:12]}...")
    return integer


class SampledAnswers:
    """What a model answered to each problem, several times over."""

    def __init__(self, path: Path, *, agree: int) -> None:
        """Reads rows `{id, answers: [text, ...]}`, ids as `prepare` wrote them, and keeps what was said often enough.

        `agree`: how often. Raises DataError, naming file and line, for a row of another form and an id used twice.
        """
        self._agree = agree
        self._often: dict[str, tuple[str, ...]] = {}
        for line, row in read_rows(path):
            where = f"{path}:{line}"
            name = text_field(row, "id", where)
            answers = row.get("answers")
            if not isinstance(answers, list):
                raise DataError(f"{where}: answers must be a list of texts, got {brief(answers)}")
            if name in self._often:
                raise DataError(f"{where}: id {name!r} a second time; put all its answers into one row")
            counts = Counter(canonical_integer(str(answer)) for answer in answers)
            self._often[name] = tuple(text for text, n in counts.items() if text is not None and n >= agree)

    def check(self, name: str, answer: str) -> RemovedRow | None:
        """Why the problem `name` (its id) with the canonical `answer` is removed; None when it is confirmed."""
        often = self._often.get(name)
        if often is None:
            return RemovedRow("not-sampled", "no row with this id")
        if answer in often:
            return None
        said = ", ".join(often) or "no integer"
        return RemovedRow("unverified", f"the label is {answer}; sampled at least {self._agree} times: {said}")
