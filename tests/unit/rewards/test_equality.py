r"""Equality of answers in the package that runs in the sandbox, called in this process."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.rewards.equality.check import verdict
from rstar2_train.rewards.equality.commands import Unsupported
from rstar2_train.rewards.equality.exact import exact
from rstar2_train.rewards.equality.latex import parse
from rstar2_train.rewards.equality.tokens import ParseError
from rstar2_train.rewards.equality.values import Undecided, equal_values

EQUAL = [
    (r"2\frac{3}{8}", "19/8"),
    (r"3\times 10^8", "3e8"),
    ("0.001", "1e-3"),
    ("3e+8", "300000000"),
    ("1E-8", r"10^{-8}"),
    (r"0.\overline{3}", r"\frac13"),
    (r"0.\bar 3", "1/3"),
    ("0.333...", r"\frac{1}{3}"),
    (r"0.1666\ldots", "1/6"),
    (r"20{,}000\pi", r"20000\pi"),
    (r"1,234\sqrt2", r"1234\sqrt{2}"),
    (r"\lbrace 1,2 \rbrace", r"\{2,1\}"),
    ("-1./3", r"-\frac13"),
    ("100, 200", "100,200"),
    ("x=5", "5"),
    ("5=x", "x=5"),
    ("x+1=6", "x=5"),
    ("x=2+3=5", "5"),
    ("4x+6y=2", "2x+3y=1"),
    ("y=2x+3", "2x-y=-3"),
    (r"\ddot{y}+3y=0", "y''(t)=-3y(t)"),
    (r"\frac{d^2y}{dx^2}=-3y", "y''+3y=0"),
    (r"\sin^2x+\cos^2x", "1"),
    (r"2\sin x\cos x", r"\sin 2x"),
    (r"\ln a+\ln b", r"\ln(ab)"),
    (r"(-1)^n", r"\cos(n\pi)"),
    ("n(n-1)!", "n!"),
    (r"(2+i)(3-i)", "7+i"),
    (r"e^{i\pi}", "-1"),
    (r"\tan 45^\circ", "1"),
    (r"\cotx", r"\cot x"),
    ("E_1", "E_{1}"),
    (r"v_{\text{max}}", "v_{max}"),
    ("MR", r"\text{MR}"),
    (r"e^{-t/RC}", r"e^{-\frac{t}{RC}}"),
    (r"\{1\pm\sqrt5,-2\}", r"-2,1+\sqrt5,1-\sqrt5"),
    ("x<2 or x>3", r"(-\infty,2)\cup(3,\infty)"),
    (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)\cup(2,\infty)"),
    (r"\{x\in\mathbb{R} \mid 1\le x<2\}", "[1,2)"),
    ("2a+2b\\ge 2c", r"c\le a+b"),
    (r"\begin{bmatrix} 1 \\ 0.5 \end{bmatrix}", r"\begin{pmatrix} 1 \\ 1/2 \end{pmatrix}"),
    (r"\begin{vmatrix} 1&2\\3&4\end{vmatrix}", "-2"),
    ("y=2,x=1", "(1,2)"),
    ("1:2", r"\frac12"),
    ("3.141593", r"\pi"),
    ("0.6666666666666666", r"\frac23"),
    (r"2^{300}\sqrt2+1", r"1+\sqrt{2^{601}}"),
    (r"1+2+\cdots+n", r"1+2+\cdots+n"),
    ("1.41421356", r"\sqrt2"),
    ("200, 100", r"\{100,200\}"),
    (r"x\ne\pm1", r"(-\infty,-1)\cup(-1,1)\cup(1,\infty)"),
    (r"x\ne 3, -2", r"x\ne-2\text{ and }x\ne3"),
    (r"\pm(2,-1)", "(2,-1),(-2,1)"),
    (r"x=\frac32\pm\frac{\sqrt5}{2}", r"x=\frac{3\pm\sqrt5}{2}"),
    (r"\frac12\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}0.5&1\end{pmatrix}"),
    (r"-\log_23", r"\log_{\frac12}3"),
    (r"\approx 3.7", "3.70"),
    (r"\ddot x=-\frac{k}{m}x", r"m\ddot{x}+kx=0"),
    (r"\dot\theta=\omega", r"\frac{d\theta}{dt}=\omega"),
    (r"P'(t)=kP(t)", r"\frac{dP}{dt}=kP"),
    (r"10\pmod 7", r"3\pmod 7"),
    (r"\begin{cases}x=1\\y=2\end{cases}", "(1,2)"),
    (r"\operatorname{cis}60^\circ", r"\frac{1+i\sqrt3}{2}"),
    (r"\log 2", r"\log_{10} 2"),
    (r"x_1=1, x_2=2", "x=2, x=1"),
    (r"|x|\le1", "[-1,1]"),
    (r"|x-2|<3", "(-1,5)"),
    (r"|2x-1|\le3", "[-1,2]"),
    (r"|1-x|>2", r"(-\infty,-1)\cup(3,\infty)"),
    (r"|m|>1", r"m<-1\text{ or }m>1"),
    (r"1<|x|<2", r"(-2,-1)\cup(1,2)"),
    (r"|x|>-1", r"\mathbb{R}"),
    (r"3-2x\ge 1", r"(-\infty,1]"),
    (r"\frac35<x\le\frac83", r"(\frac35,\frac83]"),
    (r"|3x-\sqrt2|<\sqrt2", r"(0,\frac{2\sqrt2}{3})"),
    (r"x<1\text{ or }2x=4", r"(-\infty,1)\cup\{2\}"),
    (r"|x|=3\text{ or }x>5", r"\{-3,3\}\cup(5,\infty)"),
    ("a=1/b", "ab=1"),
    (r"\frac1a+\frac1b=\frac1c", "bc+ac=ab"),
    (r"y=\frac{2}{x-1}", "(x-1)y=2"),
    (r"2k\pi", r"2n\pi"),
    (r"\frac{(4n+1)\pi}{4}", r"\frac{\pi}{4}+k\pi"),
    (r"2k-1, k\in\mathbb{Z}", r"2n+1, n\in\mathbb{Z}"),
    (r"\{5k-2 : k\in\mathbb{Z}\}", r"5n+3, n\in\mathbb{Z}"),
    (r"\frac{\pi}{3}+2k\pi, \frac{4\pi}{3}+2k\pi, k\in\mathbb{Z}", r"\frac{\pi}{3}+n\pi, n\in\mathbb{Z}"),
    ("n=7k+3", r"n\equiv3\pmod 7"),
    (r"n\equiv 1\pmod 2", r"n\equiv 1,3\pmod 4"),
    (r"x\equiv\pm1\pmod5", r"x\equiv 1,4\pmod 5"),
    ("y=Ae^{2x}", "y=Ce^{2x}"),
    ("Ae^x+Be^{-x}", "y=C_1e^{-x}+C_2e^x"),
    (r"x(t)=A\cos\omega t+B\sin\omega t", r"x(t)=C_1\cos\omega t+C_2\sin\omega t"),
    (r"\sin^2x+K", r"-\frac12\cos 2x+C"),
    ("f(x)=kx", "f(x)=cx"),
    ("x^2+y^2=K", "x^2+y^2=C"),
    (r"\begin{pmatrix}3\\-4\end{pmatrix}", "(3,-4)"),
    ("(2,-1)", r"\begin{pmatrix}2\\-1\end{pmatrix}"),
    (r"\begin{pmatrix}2&-1\end{pmatrix}^T", r"\begin{pmatrix}2\\-1\end{pmatrix}"),
    (r"\zeta(2)", r"\frac{\pi^2}{6}"),
    (r"\Gamma(\frac12)", r"\sqrt{\pi}"),
    (r"\Gamma(n+1)", "n!"),
    ("P(5,2)", "20"),
    (r"\varphi(10)", "4"),
    ("1000", "(1,000)"),
    (r"\frac12\text{ or }0.5", r"\frac12"),
    (r"\pi\over 6", r"\frac{\pi}{6}"),
]
DIFFERENT = [
    (r"2r\pi", r"2n\pi"),
    (r"n\pi", r"(n-2)\pi"),
    ("2n-1", "2n+1"),
    (r"2n+1, n\in\mathbb{N}", r"2n+1, n\in\mathbb{Z}"),
    (r"4n+1, n\in\mathbb{Z}", r"2n+1, n\in\mathbb{Z}"),
    (r"2n^2+1, n\in\mathbb{Z}", r"2n+1, n\in\mathbb{Z}"),
    ("n=3k+7", r"n\equiv3\pmod 7"),
    ("m=7k+3", r"n\equiv3\pmod 7"),
    (r"n\equiv 1\pmod 4", r"n\equiv 1,3\pmod 4"),
    (r"\frac12AV^2", r"\frac12CV^2"),
    ("y=Axe^{2x}", "y=Ce^{2x}"),
    ("y=Ae^{2t}", "y=Ce^{2x}"),
    ("y=C_1e^x+C_1e^{-x}", "y=C_1e^{-x}+C_2e^x"),
    (r"\sin^2x", r"-\frac12\cos 2x+C"),
    ("k=5", "c=5"),
    ("y=mx+b", "y=mx+c"),
    (r"\frac{C_2Q}{C_1+C_2}", r"\frac{C_1Q}{C_1+C_2}"),
    ("x^2+y^2=1", "x^2+y^2=C"),
    (r"\begin{pmatrix}-4\\3\end{pmatrix}", "(3,-4)"),
    (r"\zeta(3)", r"\frac{\pi^2}{6}"),
    ("P(2,5)", "20"),
    (r"10\varphi", r"\varphi(10)"),
    ("(1,0)", "(1,000)"),
    (r"\frac12\text{ or }0.6", r"\frac12"),
    (r"\frac12\text{ and }\frac12", r"\frac14"),
    ("1.41421357", r"\sqrt2"),
    (r"x\ne 1", r"x\ne\pm1"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"2\begin{pmatrix}1&2\end{pmatrix}"),
    (r"\text{B}\to\text{A}", r"\text{A}\to\text{B}"),
    (r"3\text{ apples and }2", r"2\text{ apples and }3"),
    (r"5\text{ boys, }4", r"4\text{ boys, }5"),
    (r"20{,}000", r"20{,}000\pi"),
    (r"\{\emptyset\}", r"\emptyset"),
    ("6:00", "5:00"),
    ("yy''+y^2=0", "y''+y=0"),
    (r"p\lor q", r"p\land q"),
    (r"\ln 2", r"\log_{10} 2"),
    ("9.1e-31", "1.6e-19"),
    ("-1.6e-19", "1.6e-19"),
    ("0", "1.6e-19"),
    ("0.5^{80}", "0.5^{70}"),
    ("(1e-31,2)", "(2e-31,2)"),
    (r"\{1e-20,1\}", r"\{2e-20,1\}"),
    ("[1e-20,1]", "[0,1]"),
    (r"10^{-300}", "0"),
    (r"2^{300}\sqrt2+1", r"2^{300}\sqrt2"),
    (r"2^{100}+1", r"2^{100}"),
    (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    ("I_2", "I_1"),
    ("e_1", "e_2"),
    ("E^2", "e^2"),
    ("3R^2", "3r^2"),
    ("I", "i"),
    ("f(2)=420", "f(2)=419"),
    ("x+1=7", "x=5"),
    ("x+1=5", "5"),
    ("x=5=6", "6"),
    ("y''-3y=0", "y''+3y=0"),
    (r"\frac{dy}{dx}=y", r"\frac{d^2y}{dx^2}=y"),
    ("|x|", "x"),
    ("18-s", "|s-18|"),
    ("3,1", "(1,3)"),
    ("(1,234)", "1234"),
    ("234, 1", "1,234"),
    ("1,1,2", "1,2"),
    (r"\text{not } 0", "0"),
    ("RM", r"\text{MR}"),
    ("0.3333", r"\frac13"),
    ("0.3333334", r"\frac13"),
    ("3.14", r"\pi"),
    (r"\frac{1}{2}3", r"\frac{1}{2}"),
    (r"\frac{1}{2} ((", r"\frac12"),
    ("|x|<1", "[-1,1]"),
    (r"|x|\le2", "[-1,1]"),
    (r"|x-2|<3", "(-1,4)"),
    (r"|2x-1|\le3", "[-2,1]"),
    ("|x|>2", r"(2,\infty)"),
    (r"|x|+1\le2", "[-2,2]"),
    (r"x^2\le1", r"|x|\le2"),
    (r"3-2x\ge 1", r"[1,\infty)"),
    ("a=b", "ab=1"),
    ("a=-1/b", "ab=1"),
    (r"\frac1a+\frac1b=1", "a+b=1"),
    (r"y=\frac{2}{x-1}", "(x+1)y=2"),
    ("x(x-1)=0", "x=1"),
    (r"x<1\text{ or }2x=4", r"(-\infty,1)\cup\{4\}"),
    (r"|x|=3\text{ or }x>5", r"\{3\}\cup(5,\infty)"),
    (r"\lfloor x\rfloor<2", r"(-\infty,2]"),
    ("a+b>c", r"a+b\ge c"),
    (r"c\ge a+b", r"c\le a+b"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ("[2,1]", "[1,2]"),
    (r"-\infty", r"\infty"),
    ("1/0", "0"),
    ("9^{9^{9^{9}}}", "7"),
]


@pytest.mark.parametrize(("answer", "gold"), EQUAL)
def test_verdict_of_equal_answers_is_correct(answer: str, gold: str) -> None:
    """Other forms of an answer are accepted."""
    assert verdict([(answer, gold)]) == "correct"


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_verdict_of_different_answers_is_wrong(answer: str, gold: str) -> None:
    """Other answers are refused, in both directions."""
    assert verdict([(answer, gold)]) == verdict([(gold, answer)]) == "wrong"


def test_verdict_of_unsolved_equation_is_wrong() -> None:
    """A multiple of the equation does not state the known value; the reverse states more than the gold equation."""
    assert (verdict([("2x=10", "x=5")]), verdict([("x=5", "2x=10")])) == ("wrong", "correct")


def test_verdict_of_a_time_is_no_ratio() -> None:
    """A known answer that a ratio would reduce is a time of day; of another one, the answer may be unreduced."""
    assert (verdict([("1:10", "3:30")]), verdict([("3:30", "1:10")])) == ("wrong", "correct")


def test_verdict_any_pair_decides() -> None:
    """One equal pair is enough."""
    assert verdict([("1", "2"), ("1", "1")]) == "correct"


@pytest.mark.parametrize(("answer", "gold"), [(r"2^{10^7}+1", r"2^{10^7}"), ("9^{9^{9^{9}}}", "8^{9^{9^{9}}}")])
def test_verdict_beyond_all_digits_is_undecided(answer: str, gold: str) -> None:
    """Numbers that agree in all computable digits are neither correct nor wrong."""
    assert verdict([(answer, gold)]) == "undecided"
    with pytest.raises(Undecided):
        equal_values(parse(answer), parse(gold))


nonzero = st.integers(-(10**6), 10**6).filter(bool)


@settings(deadline=None)
@given(nonzero, nonzero, st.integers(0, 60))
def test_verdict_compares_scaled_numbers_relatively(first: int, second: int, power: int) -> None:
    """Two numbers are equal only if their digits are, at any distance from zero."""
    pair = (rf"\frac{{{first}}}{{10^{{{power}}}}}", f"{second}e-{power}")
    root = (rf"{first}\sqrt{{2}}\cdot 10^{{-{power}}}", rf"\frac{{{second}\cdot 10^{{-{power}}}\cdot 2}}{{\sqrt{{2}}}}")
    expected = "correct" if first == second else "wrong"
    assert verdict([pair]) == verdict([root]) == expected


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=4), st.lists(st.integers(-9, 9), min_size=2, max_size=4))
def test_verdict_compares_polynomials_exactly(first: list[int], second: list[int]) -> None:
    """Two polynomials are equal only if their coefficients are."""

    def printed(coefficients: list[int]) -> str:
        return "+".join(f"({value})x^{power}" for power, value in enumerate(coefficients))

    while first[-1:] == [0] and len(first) > 1:
        first = first[:-1]
    while second[-1:] == [0] and len(second) > 1:
        second = second[:-1]
    assert verdict([(printed(first), printed(second))]) == ("correct" if first == second else "wrong")


@settings(deadline=None)
@given(st.text(alphabet=r"\{}()[]^_+-*/=<>|,.;:!'&$ 0123456789abefinxy", max_size=30))
def test_verdict_of_any_text_equals_itself_or_is_wrong(text: str) -> None:
    """No text raises an error, and none equals a number that it does not have."""
    assert verdict([(text, "7919.25")]) == ("correct" if "7919.25" in text else "wrong")


@given(st.fractions(max_denominator=10**6))
def test_exact_of_a_fraction_is_its_value(value: Fraction) -> None:
    """A fraction is computed without rounding."""
    assert exact(parse(rf"\frac{{{value.numerator}}}{{{value.denominator}}}")) == value


@pytest.mark.parametrize("text", [r"\int_0^1 x\,dx", r"\sum_{k=1}^n k", r"\lim_{x \to 0} x"])
def test_parse_operator_of_analysis_is_unsupported(text: str) -> None:
    """Integrals, sums and limits are for another parser."""
    with pytest.raises(Unsupported):
        parse(text)


@pytest.mark.parametrize("text", ["", "(1", "1)", r"\frac{1}", "1 2", r"\nonsense{1}", "(1,2,3]", r"\begin{pmatrix} 1"])
def test_parse_broken_text_raises(text: str) -> None:
    """A text that is not an answer as a whole is an error."""
    with pytest.raises(ParseError):
        parse(text)
