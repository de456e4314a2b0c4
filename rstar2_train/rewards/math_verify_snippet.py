r"""Compares answers with gold answers by math-verify. The judge runs this program; it is sent as text.

`verify.parser_snippet` appends the call of `main`. No module imports this file: a hostile answer can make it use any
time, memory and stack, so that only the sandbox's limits stop it reliably. math-verify's own alarms (5 s for each side
and for the comparison) stop most answers sooner.
"""

import math
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException
from sympy import I, Intersection

# The parser's rule for units would read a last variable as a unit, and a later match is only a part of the answer.
# Only LaTeX: the parser of plain expressions evaluates Python.
RULES = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
CONFIG = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=RULES)]
DIGITS = 6
"""Significant digits, and decimals, that must agree between a rounded decimal and an exact value."""


def read(text: str) -> list[Any]:
    """Return the answer as one sympy object; empty if the parser does not read it as a whole."""
    boxed = "\\boxed{" + text + "}"
    values = parse(boxed, CONFIG, fallback_mode="no_fallback", extraction_mode="first_match", raise_on_error=True)
    return [value.doit() if isinstance(value, Intersection) else value for value in values]


def imaginary(values: list[Any]) -> list[Any]:
    """Return the values with `i` as the imaginary unit, which the parser reads as a letter."""
    return [value.subs({letter: I for letter in value.free_symbols if letter.name == "i"}) for value in values]


def equal(answer: list[Any], gold: list[Any]) -> bool:
    """Return whether the two are equal according to math-verify."""
    try:
        places = DIGITS - 1 - math.floor(math.log10(abs(float(gold[0]))))
    except (TypeError, ValueError, OverflowError):
        places = DIGITS  # not a number, or zero
    rounding = max(DIGITS, places)
    return bool(verify(gold, answer, float_rounding=rounding, allow_set_relation_comp=True, raise_on_error=True))


def main(pairs: list[tuple[str, str]]) -> None:
    """Print `correct` if one of the (answer, gold) pairs is equal, else `wrong`; `timeout` after an alarm."""
    verdict = "wrong"
    try:
        for both in ([read(answer), read(gold)] for answer, gold in pairs):
            complex_ = [imaginary(side) for side in both]
            if all(both) and (equal(*both) or (complex_ != both and equal(*complex_))):
                verdict = "correct"
    except TimeoutException:
        verdict = "timeout"
    except Exception:
        pass  # an answer that the parser rejects is not the gold answer
    print(verdict)
