r"""Compares answers with gold answers by math-verify: the program that the judge runs, sent to it as text.

`verify.parser_snippet` appends the call of `main`. Nothing imports this file: what it does with a hostile answer can
take any time, memory and stack, so that only the sandbox's limits end it for sure. math-verify's own alarms (5 s for
each side and for the comparison) end most of them sooner.
"""

import math
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException
from sympy import I, Intersection

# The parser's rule for units would take a last variable for one, and a later match is but a part of the answer.
# LaTeX alone: the plain-expression reader evaluates Python.
RULES = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
CONFIG = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=RULES)]
DIGITS = 6
"""A rounded decimal is equal to an exact value when at least so many significant digits, and decimals, agree."""


def read(text: str) -> list[Any]:
    """The answer as one sympy object, or nothing when it is not understood as a whole."""
    boxed = "\\boxed{" + text + "}"
    found = parse(boxed, CONFIG, fallback_mode="no_fallback", extraction_mode="first_match", raise_on_error=True)
    return [one.doit() if isinstance(one, Intersection) else one for one in found]


def imaginary(found: list[Any]) -> list[Any]:
    """The same with `i` as the imaginary unit, which the parser takes for a letter."""
    return [one.subs({letter: I for letter in one.free_symbols if letter.name == "i"}) for one in found]


def equal(answer: list[Any], gold: list[Any]) -> bool:
    """Whether the two are the same by math-verify."""
    try:
        places = DIGITS - 1 - math.floor(math.log10(abs(float(gold[0]))))
    except (TypeError, ValueError, OverflowError):
        places = DIGITS  # no number, or zero
    rounding = max(DIGITS, places)
    return bool(verify(gold, answer, float_rounding=rounding, allow_set_relation_comp=True, raise_on_error=True))


def main(pairs: list[tuple[str, str]]) -> None:
    """Prints `correct` when one of the (answer, gold) pairs is equal, else `wrong`, or `timeout` after an alarm."""
    verdict = "wrong"
    try:
        for both in ([read(answer), read(gold)] for answer, gold in pairs):
            complex_ = [imaginary(side) for side in both]
            if all(both) and (equal(*both) or (complex_ != both and equal(*complex_))):
                verdict = "correct"
    except TimeoutException:
        verdict = "timeout"
    except Exception:
        pass  # what the parser cannot take is not the gold answer
    print(verdict)
