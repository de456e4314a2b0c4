"""The benchmark's rewritten and wrong answers, for invented answers of every form, compared as text."""

import pytest
from rstar2_verify import verify

from bench.forms.generated import CLASSES, generated
from bench.verify import FORMS, cases
from rstar2_train.rewards.verify import compare

INVENTED = {
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


def test_forms_all_have_answers() -> None:
    """Every form of the benchmark has answers in this test."""
    assert {form.name for form in FORMS} == set(INVENTED)


@pytest.mark.parametrize(("form", "gold"), [(form, gold) for form, golds in INVENTED.items() for gold in golds])
def test_compare_never_contradicts_the_forms(form: str, gold: str) -> None:
    """Equal variants are never wrong, and different answers never correct, without the parser."""
    variants = list(cases(gold))
    assert {case.form for case in variants} == {form}
    same = {case.answer for case in variants if case.kind == "same"}
    other = {case.answer for case in variants if case.kind == "other"}
    assert len(same) >= 12 and len(other) >= 10 and not same & other
    assert {answer for answer in same if compare(answer, gold) == "wrong"} == set()
    assert {answer for answer in other if compare(answer, gold) == "correct"} == set()


def test_cases_unknown_form_has_generic_pairs() -> None:
    """A gold answer of an unknown form is measured with the generic form."""
    variants = list(cases("??? 5"))
    assert {case.form for case in variants} == {"other"}
    assert {case.kind for case in variants} == {"itself", "same", "other"}


def test_classes_are_at_least_forty() -> None:
    """The generated classes with their golds give the promised number of pairs."""
    assert len(CLASSES) >= 40


@pytest.mark.parametrize("name", CLASSES)
def test_generated_pairs_are_decided_right(name: str) -> None:
    """In each class, equal answers are correct and near misses wrong."""
    for pairs in generated(name, 2):
        assert len(pairs.same) >= 3 and len(pairs.other) >= 3 and not set(pairs.same) & set(pairs.other)
        for expected, answers in (("equal", [pairs.gold, *pairs.same]), ("different", pairs.other)):
            outcomes = {answer: verify(pairs.gold, answer).outcome for answer in answers}
            assert {answer for answer in answers if outcomes[answer] != expected} == set(), pairs.gold
