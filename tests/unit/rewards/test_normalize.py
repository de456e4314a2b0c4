"""Normalisation of answers: formatting, units, bases and words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.rewards.normalize import NormalizedAnswer, normalize
from rstar2_train.rewards.units import UNITS
from rstar2_train.rewards.words import has_other_words, is_word_answer, normalize_words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$7$", "7"),
        (r"\(7\)", "7"),
        (r"\[ 7 \]", "7"),
        ("**7**", "7"),
        ("7.", "7"),
        (r"\mathbf{7.5}", "7.5"),
        (r"\text{7.5}", "7.5"),
        (r"7{,}500", "7{,}500"),
        (r"7,\!500", "7{,}500"),
        (r"7\,500", "7{,}500"),
        ("7 500", "7 500"),
        (r"\left( 7,\, 5 \right)", "( 7,  5 )"),
        (r"\Bigl[7,5\Bigr)", "[7,5)"),
        (r"\dfrac{7}{5}", r"\frac{7}{5}"),
        ("\\frac 7 5", r"\frac{7}{5}"),
        ("1 2/7", r"1\frac{2}{7}"),
        ("1½", r"1\frac{1}{2}"),
        ("２π", r"2\pi"),
        ("7√15", r"7\sqrt{15}"),
        ("x²", "x^{2}"),
        ("x¹⁰", "x^{10}"),
        ("7 \N{MULTIPLICATION SIGN} 5", r"7 \times  5"),
        ("2*pi", r"2*\pi"),
        ("x**10", "x^{10}"),
        ("(-oo, 7]", r"(-\infty , 7]"),
        ("7x <= 5", r"7x \le  5"),
        (r"7-5\mathrm{i}", "7-5i"),
        ("7.5e-3", r"7.5\cdot 10^{-3}"),
        ("2e-1", "2e-1"),
        (r"\spin", r"\spin"),
        ("3rd", "3"),
        (r"3^{\text{rd}}", "3"),
        (r"\text{5th}", "5"),
        (r"\overline{AB}", "AB"),
        (r"90^\text{o} + 1", r"90^\circ  + 1"),
        (r"3 \ (\text{mod } 7)", r"3  \pmod{7}"),
        (r"^{10}C_3", r"\binom{10}{3}"),
        ("10C3", r"\binom{10}{3}"),
        (r"\mathbb{R}^+", r"(0,\infty)"),
        ("<1,2>", r"\langle 1,2\rangle"),
        (r"1\text{, }2\text{, and }3", "1,  2, and 3"),
        (r"\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\  2 \end{pmatrix}"),
        (r"\begin{Bmatrix} 1 \end{Bmatrix}", r"\begin{pmatrix} 1 \end{pmatrix}"),
        (r"5x + 3t", r"5x + 3t"),
        ("", ""),
    ],
)
def test_normalize_removes_formatting(text: str, value: str) -> None:
    """The formatting is removed; the answer is unchanged."""
    assert normalize(text) == NormalizedAnswer(value)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        (r"7\text{ cm}", "7", "cm"),
        (r"7~\mathrm{cm}^2", "7", "cm2"),
        (r"7 \mbox{ square inches}", "7", "in2"),
        (r"7\text{ sq. ft}", "7", "ft2"),
        (r"7\text{ m$^3$}", "7", "m3"),
        (r"7\text{ cubic meters}.", "7", "m3"),
        ("7 cm²", "7", "cm2"),
        ("7 hours", "7", "h"),
        ("7 Miles", "7", "mi"),
        (r"\frac{7}{5} degrees", r"\frac{7}{5}", "degree"),
        ("7°", "7", "degree"),
        (r"7^{\circ}", "7", "degree"),
        (r"7\text{°}", "7", "degree"),
        (r"7^\circ\text{C}", "7", "celsius"),
        (r"7\text{ m/s}^2", "7", "m/s2"),
        (r"7\,\mathrm{m\,s^{-1}}", "7", "m/s"),
        (r"7\ \frac{\text{m}}{\text{s}}", "7", "m/s"),
        ("7 miles per hour", "7", "mi/h"),
        ("7 km/h", "7", "km/h"),
        (r"7\text{ J}", "7", "J"),
        (r"7\text{ apples per day}", "7", ""),
        (r"3\text{ hours and }20\text{ minutes}", "(3,20)", "h+min"),
        ("5 ft 11 in", "(5,11)", "ft+in"),
        (r"3\text{ dollars and }5\text{ cents}", "3.05", "dollar"),
        ("10:15 a.m.", "10:15", "am"),
        (r"7\mathbf{j}", r"7\mathbf{j}", ""),
        ("2mg", "2mg", ""),
        (r"7\%", "7", "%"),
        ("7 percent", "7", "%"),
        (r"\$7.50", "7.50", "dollar"),
        ("$7.50", "7.50", "dollar"),
        (r"\text{\$7,500}", "7,500", "dollar"),
        (r"7\$", "7", "dollar"),
        ("USD 7", "7", "dollar"),
        (r"7\text{ cents}", "7", "cent"),
        (r"7\text{ apples}", "7", ""),
        (r"x = 7\text{ m}", "x = 7", "m"),
        ("7 m", "7 m", ""),
        ("7t", "7t", ""),
        (r"\text{cm}", r"\text{cm}", ""),
        (r"7 \text{ and } 5", r"7 \text{ and } 5", ""),
        (r"1, 7 \text{ or } 2", r"1, 7 \text{ or } 2", ""),
        (r"x_\text{max}", r"x_\text{max}", ""),
        (r"7\text{ or more}", r"7\text{ or more}", ""),
    ],
)
def test_normalize_separates_units_from_variables(text: str, value: str, unit: str) -> None:
    """A unit is separated from the value; a variable stays."""
    assert normalize(text) == NormalizedAnswer(value, unit)


@pytest.mark.parametrize(
    ("text", "digits", "base"),
    [
        ("31_7", "31", "7"),
        ("31_{12}", "31", "12"),
        (r"(31)_{\text{7}}", "31", "7"),
        (r"\text{31}_7", "31", "7"),
        (r"n = 31_{7}", "31", "7"),
        (r"31\text{ base }7", "31", "7"),
        (r"31 \text{ (base 7)}", "31", "7"),
        ("1A3_{16}", "1A3", "16"),
        ("0031_7", "31", "7"),
        ("31 in base seven", "31", "7"),
        (r"101\text{ in binary}", "101", "2"),
    ],
)
def test_normalize_reads_the_base_of_a_numeral(text: str, digits: str, base: str) -> None:
    """A subscript of a numeral is its base."""
    assert normalize(text) == NormalizedAnswer(digits, base=base)


@pytest.mark.parametrize("text", ["x_1", "x_{12}", "31_n", "3_1 + 2"])
def test_normalize_other_subscripts_are_no_base(text: str) -> None:
    """Subscripts of letters and expressions are not bases."""
    assert normalize(text).base == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\text{Alice}", "alice"),
        (r"\textbf{ ALICE }.", "alice"),
        ('"Alice"', "alice"),
        ("**Alice**", "alice"),
        (r"\text{New\ York}", "new york"),
        (r"\text{(D)}", "d"),
        ("(D).", "d"),
        ("D)", "d"),
        (r"\text{Choice D}", "d"),
        (r"\text{Option }D", "d"),
        (r"\text{choice}", "choice"),
        (r"\text{not Alice}", "not alice"),
        (r"\text{D, E}", "d, e"),
    ],
)
def test_normalize_words_of_an_answer(text: str, expected: str) -> None:
    """Fonts, punctuation, case and labels such as `Choice` are removed."""
    assert normalize_words(text) == expected


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (r"\text{Alice}", True),
        (r"\text{(D)}", True),
        (r"\mbox{New York}", True),
        ("parabola", True),
        ("scalene triangle", True),
        ("xyz", False),
        ("Yes", True),
        ("no", True),
        ("Odd", True),
        ("ab", False),
        ("p - q", False),
        (r"\cot x", False),
        (r"7\text{ cm}", False),
        (r"\text{7}", False),
        (r"\text{x=y}", False),
        ("D", False),
    ],
)
def test_is_word_answer_of_gold_answers(gold: str, expected: bool) -> None:
    """Letters in a text command, and bare words, are compared as words."""
    assert is_word_answer(gold) is expected


@pytest.mark.parametrize(
    ("value", "other", "more"),
    [
        (r"\text{not } 0", "0", True),
        (r"\text{area} = 5", "5", False),
        (r"1 \text{ and } 2", "1,2", False),
        (r"\text{x}+1", "1", False),
        (r"\text{MR}", "MR", False),
    ],
)
def test_has_other_words_in_a_plain_value(value: str, other: str, more: bool) -> None:
    """Labels before `=`, `and` and `or`, and letters of the other side, do not count as words."""
    assert has_other_words(value, other) is more


@given(st.text(st.sampled_from("\\${}()[]<>=^_,.*% 123abxi°½²√∞orandtextcirc"), max_size=60))
def test_normalize_accepts_any_text(text: str) -> None:
    """Any text is normalised without an error."""
    assert isinstance(normalize(text), NormalizedAnswer) and isinstance(normalize_words(text), str)


FONTS = ["{}", r"\text{{ {} }}", r"\mathbf{{{}}}", r"\text{{\mathbf{{{}}}}}"]
AROUND = ["${}$", r"\({}\)", "**{}**", "{}.", r" {} ", r"\displaystyle {}", '"{}"']
NAMES = [(unit, name) for unit, names in UNITS.items() for name in names.split() if unit not in ("am", "pm")]


@given(st.integers(), st.sampled_from(FONTS), st.lists(st.sampled_from(AROUND), max_size=4, unique=True))
def test_normalize_removes_nested_formatting(number: int, font: str, around: list[str]) -> None:
    """Any combination of fonts and wrappers around a number is removed."""
    text = font.format(number)
    for wrapper in around:
        text = wrapper.format(text)
    assert normalize(text) == NormalizedAnswer(str(number))


@pytest.mark.parametrize(("unit", "name"), NAMES)
def test_normalize_knows_every_unit_name(unit: str, name: str) -> None:
    """Each name of a unit is known, also in the plural. A single letter has none: `ms` is a millisecond."""
    for written in (name, f"{name}s") if len(name) > 1 else (name,):
        assert normalize(rf"7\text{{ {written}}}") == NormalizedAnswer("7", unit)
