r"""The functions `parse` and `verify` with the signatures of math-verify, for programs that use that package.

`from rstar2_verify.math_verify import parse, verify`. `parse` keeps the text of the last `\boxed{}`, or the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .extract import boxes
from .verifier import verify as verify_texts


def parse(pred: str, *_: Any, **__: Any) -> list[str]:
    """Return the answer of a text as a list with one item; empty for an empty text."""
    places = boxes(pred)
    text = pred[places[-1][1] : places[-1][2]].strip() if places else pred
    return [text] if text.strip() else []


def verify(gold: Sequence[str] | str, target: Sequence[str] | str, *_: Any, **__: Any) -> bool:
    """Return whether one of the answers equals one of the known answers."""
    golds, targets = ([side] if isinstance(side, str) else side for side in (gold, target))
    return any(verify_texts(known, answer).outcome == "equal" for known in golds for answer in targets)
