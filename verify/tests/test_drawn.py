"""Properties of verdicts on drawn answers: notation, order of the sides, text around them, hostile texts, printers."""

from __future__ import annotations

import re
import resource
import runpy
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rstar2_verify import verify

NUMBERS = st.one_of(
    st.integers(2, 10**6).map(str),
    st.tuples(st.integers(1, 40), st.integers(2, 40)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    st.integers(2, 60).map(lambda number: rf"\sqrt{{{number}}}"),
    st.integers(2, 30).map(lambda number: rf"{number} \pi"),
)
LETTERS = st.sampled_from(["x", "y", r"\theta ", r"\alpha "])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: f"{pair[0]} + {pair[1]}"),
        pairs.map(lambda pair: rf"\left({pair[0]}\right) \left({pair[1]}\right)"),
        pairs.map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        st.tuples(inner, st.integers(2, 5)).map(lambda pair: rf"\left({pair[0]}\right)^{{{pair[1]}}}"),
        inner.map(lambda part: rf"\sin \left({part}\right)"),
        inner.map(lambda part: rf"\sqrt{{{part}}}"),
    )


EXPRESSIONS = st.recursive(st.one_of(NUMBERS, LETTERS), _larger, max_leaves=5)
ANSWERS = st.one_of(
    EXPRESSIONS,
    st.lists(EXPRESSIONS, min_size=2, max_size=3).map(lambda parts: rf"\left({', '.join(parts)}\right)"),
    st.lists(NUMBERS, min_size=2, max_size=3, unique=True).map(lambda parts: rf"\{{{', '.join(parts)}\}}"),
    st.tuples(st.integers(-50, 0), st.integers(1, 50)).map(lambda ends: rf"\left[{ends[0]}, {ends[1]}\right)"),
    st.tuples(NUMBERS, st.sampled_from(["m", "kg", "m/s", "J"])).map(lambda pair: rf"{pair[0]} \text{{ {pair[1]}}}"),
    EXPRESSIONS.map(lambda part: f"y = {part} + 2 z"),
)  # fmt: skip
"""Answers of several types, in LaTeX."""
REWRITINGS = {
    "spacing": lambda text: re.sub(r" ?([-+=]) ?", r"\\, \1~", text),
    "sizes": lambda text: text.replace(r"\left", r"\bigl").replace(r"\right", r"\bigr"),
    "no sizes": lambda text: text.replace(r"\left", "").replace(r"\right", ""),
    "fonts": lambda text: rf"\displaystyle {text}".replace(r"\text{", r"\mathrm{"),
    "fractions": lambda text: text.replace(r"\frac", r"\dfrac"),
    "Unicode": lambda text: (
        text.replace(r"\pi", "π").replace(r"\theta ", "θ").replace(r"\alpha ", "\N{GREEK SMALL LETTER ALPHA}")
    ),
    "box": lambda text: rf"So we get $\boxed{{{text}}}$.",
    "sentence": lambda text: f"Thus the final answer is ${text}$.",
}
DRAWN = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@DRAWN
@given(ANSWERS, st.sampled_from(sorted(REWRITINGS)))
def test_notation_does_not_change_an_answer(answer: str, rewriting: str) -> None:
    """An answer equals itself with other spaces, sizes, fonts and characters, in a box and in a sentence."""
    assert verify(answer, REWRITINGS[rewriting](answer)).outcome == "equal"


@DRAWN
@given(EXPRESSIONS, EXPRESSIONS)
def test_expressions_are_compared_in_either_order(first: str, second: str) -> None:
    """Two expressions have the same verdict when they are exchanged."""
    assert verify(first, second).outcome == verify(second, first).outcome


@DRAWN
@given(ANSWERS, st.integers(1, 9))
def test_a_changed_expression_is_different(answer: str, added: int) -> None:
    """An answer with another term is not the answer."""
    assert verify(f"w + {answer}", f"w + {added} + {answer}").outcome != "equal" or "text" in answer


FRAGMENTS = st.sampled_from(
    [*"()[]{}|,;:=<>+-*/^_!%$~&.'\"\\ \n0123456789abxyzdeiπ∞√∑²½°", r"\frac", r"\sqrt", r"\left", r"\right", r"\text{",
     r"\begin{pmatrix}", r"\end{pmatrix}", r"\int", r"\sum_{i=1}^", r"\pm", r"\in", r"\cup", r"\boxed{", r"\overline{",
     r"\mathbb{Z}", r"\log_", r"\binom", " or ", " and ", "is ", "not ", "m/s", "10^{", "e^{", "9!", "0x", "{'x':",
     "np.float64(", "**", "Answer: ", "####"]
)  # fmt: skip


@DRAWN
@given(
    st.lists(FRAGMENTS, max_size=25).map("".join), st.one_of(st.lists(FRAGMENTS, max_size=25).map("".join), st.text())
)
def test_no_text_raises_an_error(known: str, answer: str) -> None:
    """Every pair of texts has a verdict."""
    assert verify(known, answer).outcome in ("equal", "different", "undecided")


@settings(DRAWN, max_examples=10)
@given(st.lists(FRAGMENTS, min_size=1, max_size=6).map("".join), st.sampled_from(["5", "x^2+1", r"\text{no}", "(1,2)"]))
@example(part="a;;;;", known="5")
@example(part="∞", known="5 m")
@example(part="$$\\pm\n)'", known="5")
def test_long_hostile_texts_have_bounded_costs(part: str, known: str) -> None:
    """A text of 10,000 characters is decided within two seconds of CPU time and 200 MB; the longest time is printed."""
    text = (part * (10_000 // len(part) + 1))[:10_000]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = _seconds(known, text)
    if used >= 2:  # the first call loads modules, and a busy machine multiplies CPU time: a costly text is so again
        used = _seconds(known, text)
    LONGEST.append((used, part))
    assert used < 2, part
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200_000, part


def _seconds(known: str, text: str) -> float:
    start = time.process_time()
    verify(known, text)
    verify(text, text[:-1])
    return time.process_time() - start


LONGEST: list[tuple[float, str]] = []


@pytest.fixture(autouse=True, scope="module")
def _longest() -> object:
    yield
    if LONGEST:
        print(f"longest hostile text: {max(LONGEST)[0]:.2f} s of CPU time: {max(LONGEST)[1]!r}")


def test_printed_expressions_equal_the_expressions() -> None:
    """The printed form of an expression equals it, that of a changed one does not, for each kind and printer."""
    pytest.importorskip("sympy")
    module = runpy.run_path(str(Path(__file__).with_name("printed.py")))
    pairs = list(module["printed"](1))
    assert len({pair.kind for pair in pairs}) == len(module["KINDS"]) >= 30
    assert [pair for pair in pairs if (verify(pair.known, pair.answer).outcome == "equal") != pair.equal] == []
