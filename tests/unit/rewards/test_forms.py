"""The bench's rewritings and near misses, on made-up answers of every form, against what text alone decides."""

import pytest

from bench.verify import FORMS, cases
from rstar2_train.rewards.verify import compare

MADE_UP = {
    "integer": ["0", "-7", "12", "1,450", r"23,\!450"],
    "fraction": [r"\frac{7}{5}", r"-\dfrac{2}{9}", r"\frac38"],
    "mixed number": [r"2\frac{3}{8}"],
    "decimal": ["2.75", ".0061"],
    "degrees": [r"48^\circ"],
    "base": ["31_7", "120_{4}"],
    "choice": [r"\text{(D)}"],
    "word": [r"\text{Alice}", r"\mbox{hyperbola}"],
    "units": [r"12\text{ cm}^2", r"2.5 \mbox{ hours}"],
    "currency": [r"\$7.25", r"\$1,\!450"],
    "radical": [r"5\sqrt{7}", r"-\frac{\sqrt{5}}{2}"],
    "multiple of pi": [r"9\pi", r"\frac{3\pi}{4}", r"\frac{50}{\pi}"],
    "sum of two": ["4 - 3i", r"2+5\sqrt{7}"],
    "plus or minus": [r"2 \pm \sqrt{7}"],
    "matrix": [r"\begin{pmatrix} 4 \\ -1/2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 0 & 3 \end{pmatrix}"],
    "union of intervals": [r"(1,4) \cup (5,8)", r"(-\infty,1) \cup (4,\infty)"],
    "interval": ["[1,4)", r"(7,\infty)", r"(-\infty,3]", r"x \in [2,5]"],
    "tuple": ["(4,-1)", "(1,2,9)"],
    "list": ["4,-1", r"\{2, 5, 9\}"],
    "equation": ["y = 4x - 1", "x=7", "2x - 3y + 1 = 0"],
    "expression": ["a^2 - 3a + 5", "(m+2)(n-1)", r"\frac{3+4b}{7}"],
}


def test_every_form_has_answers_here() -> None:
    assert {form.name for form in FORMS} == set(MADE_UP)


@pytest.mark.parametrize(("form", "gold"), [(form, gold) for form, golds in MADE_UP.items() for gold in golds])
def test_text_never_contradicts_the_forms(form: str, gold: str) -> None:
    made = list(cases(gold))
    assert {case.form for case in made} == {form}
    same = {case.answer for case in made if case.kind == "same"}
    other = {case.answer for case in made if case.kind == "other"}
    assert len(same) >= 12 and len(other) >= 10 and not same & other
    assert {answer for answer in same if compare(answer, gold) == "wrong"} == set()
    assert {answer for answer in other if compare(answer, gold) == "correct"} == set()


def test_unknown_form_is_told() -> None:
    with pytest.raises(ValueError, match="no known form"):
        list(cases("???"))
