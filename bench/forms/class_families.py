r"""Generated classes of infinite sets: integer parameters, congruences, arbitrary constants; columns as tuples."""

from __future__ import annotations

import random
from fractions import Fraction

from bench.forms.form import fraction
from bench.forms.generated import Pairs, answer_class, signed, total

_DENOMINATORS = (2, 3, 4, 6)


def _pi(value: Fraction) -> str:
    """Return `\\frac{3\\pi}{4}`."""
    sign, top = ("-" if value < 0 else ""), abs(value.numerator)
    upper = r"\pi" if top == 1 else rf"{top}\pi"
    return f"{sign}{upper}" if value.denominator == 1 else rf"{sign}\frac{{{upper}}}{{{value.denominator}}}"


@answer_class("period without a declaration")
def _period(rng: random.Random) -> Pairs:
    bottom, factor = rng.choice(_DENOMINATORS), rng.choice([1, 2])
    start = Fraction(rng.choice([n for n in range(1, bottom) if Fraction(n, bottom).denominator == bottom]), bottom)
    period = "" if factor == 1 else str(factor)
    letter, other = rng.sample("kmn", 2)
    gold = rf"{_pi(start)}+{period}{letter}\pi"
    same = [
        rf"{_pi(start)}+{period}{other}\pi",
        rf"x={_pi(start)}+{period}\pi {other}",
        rf"{period}{other}\pi+{_pi(start)}",
        rf"{_pi(start)}+{period}{other}\pi, {other}\in\mathbb{{Z}}",
        rf"\frac{{({factor * bottom}{other}+{start.numerator})\pi}}{{{bottom}}}",
    ]
    wrong = [
        rf"{_pi(start)}+{factor + 1}{other}\pi",
        rf"{_pi(-start)}+{period}{other}\pi",
        _pi(start),
        rf"{period}{other}\pi",
        rf"{_pi(start)}+{period}{other}",
        rf"{_pi(start)}+{period}{other}^2\pi",
        rf"{_pi(start + Fraction(1, 5))}+{period}{other}\pi",
        rf"{_pi(start)}+{period}r\pi",
    ]
    return Pairs(gold, same, wrong)


@answer_class("integers in words")
def _declared(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    gold = rf"{a}n+{b}, n\in\mathbb{{Z}}"
    same = [
        rf"{a}n+{b} \text{{ where }} n \text{{ is an integer}}",
        rf"{a}k+{b} \text{{ for any integer }} k",
        rf"{a}k+{b}, \text{{ where k is an integer}}",
        rf"{a}m+{b}\text{{ for integer }}m",
        f"{a}n+{b} for any integer n",
        rf"{a}k+{b},\ k=0,\pm1,\pm2,\ldots",
        rf"\{{{a}k+{b} : k\in\mathbb{{Z}}\}}",
        rf"\{{{a}n+{b} \mid n\in\mathbb{{Z}}\}}",
        rf"{a}n+{b} \quad \forall n\in\mathbb{{Z}}",
    ]
    wrong = [
        rf"{a + 1}n+{b} \text{{ where }} n \text{{ is an integer}}",
        rf"{a}n+{a + b}, n\in\mathbb{{N}}",
        rf"{a}n+{b}, n\in\mathbb{{Z}}^+",
        rf"\{{{a}k : k\in\mathbb{{Z}}\}}" if b % a else rf"\{{{a}k+1 : k\in\mathbb{{Z}}\}}",
        rf"{a}k^2+{b} \text{{ for any integer }} k",
        str(b),
        r"\text{all integers}",
    ]
    return Pairs(gold, same, wrong)


@answer_class("integers from another start")
def _shifted(rng: random.Random) -> Pairs:
    a = rng.randint(3, 12)
    b = rng.randint(1, a - 1)
    declared = r", n\in\mathbb{Z}"
    gold = rng.choice([f"{a}n+{b}{declared}", f"x = {a}n+{b}{declared}"])
    same = [f"{a}n{b - a}{declared}", f"{a}k+{a + b}", rf"{b}-{a}k, k\in\mathbb{{Z}}", f"x={a}m{b - 2 * a}"]
    wrong = [
        f"{a}n{b - a - 1}{declared}",
        f"{a}k+{a + b + 1}",
        f"{2 * a}n+{b}{declared}",
        rf"{a}n{b - a}, n\in\mathbb{{N}}",
        f"{a}n^2+{b}{declared}",
        f"{2 * a}n+{a + b}{declared}",
    ]
    return Pairs(gold, same, wrong)


@answer_class("multiples of pi from another start")
def _shifted_period(rng: random.Random) -> Pairs:
    bottom = rng.choice((3, 4, 6, 8, 12))
    top = rng.choice([n for n in range(1, bottom) if Fraction(n, bottom).denominator == bottom])
    start = Fraction(top, bottom)
    declared = r", k\in\mathbb{Z}"
    gold = rf"{_pi(start)}+k\pi{declared}"
    same = [
        rf"{_pi(start - 1)}+k\pi{declared}",
        rf"{_pi(start + 2)}+n\pi, n\in\mathbb{{Z}}",
        rf"x={_pi(start)}+2k\pi, x={_pi(start + 1)}+2k\pi{declared}",
        rf"{_pi(start)}-k\pi{declared}",
    ]
    wrong = [
        rf"{_pi(start - 1)}+2k\pi{declared}",
        rf"{_pi(start + Fraction(1, 5))}+k\pi{declared}",
        rf"x={_pi(start)}+2k\pi, x={_pi(start + 2)}+2k\pi{declared}",
        rf"{_pi(start)}+\frac{{k\pi}}{{2}}{declared}",
        rf"{_pi(start)}+k{declared}",
        rf"{_pi(start - 1)}+k\pi, k\in\mathbb{{N}}",
    ]
    return Pairs(gold, same, wrong)


@answer_class("congruence as a progression")
def _progression(rng: random.Random) -> Pairs:
    modulus = rng.randint(3, 40)
    residue = rng.randint(1, modulus - 1)
    gold = rf"n \equiv {residue} \pmod{{{modulus}}}"
    same = [
        f"n={modulus}k+{residue}",
        f"n = {residue} + {modulus}m",
        rf"n={modulus}k+{residue}, k\in\mathbb{{Z}}",
        rf"n={modulus}k{residue - modulus}",
        f"{modulus}k+{residue}",
        rf"n \equiv {residue - modulus} \pmod {{{modulus}}}",
        rf"n={modulus}k+{residue} \text{{ for some integer }} k",
    ]
    wrong = [
        f"n={modulus}k+{residue + 1}",
        f"n={modulus + 1}k+{residue}",
        f"n={2 * modulus}k+{residue}",
        f"n={modulus}k^2+{residue}",
        f"m={modulus}k+{residue}",
        f"n={modulus}",
        rf"n \equiv {residue} \pmod{{{modulus + 1}}}",
    ]
    if residue != modulus - residue:
        wrong.append(f"n={modulus}k-{residue}")
    return Pairs(gold, same, wrong)


@answer_class("several residues")
def _residues(rng: random.Random) -> Pairs:
    modulus = rng.choice([5, 7, 8, 9, 11, 12, 13, 16])
    residue = rng.randint(1, (modulus - 1) // 2)
    opposite = modulus - residue
    gold = rf"x \equiv {residue}, {opposite} \pmod{{{modulus}}}"
    same = [
        rf"x \equiv \pm{residue} \pmod{{{modulus}}}",
        rf"x\equiv {opposite},{residue} \pmod{{{modulus}}}",
        rf"x \equiv {residue} \text{{ or }} {opposite} \pmod{{{modulus}}}",
        rf"x \equiv {residue} \pmod{{{modulus}}} \text{{ or }} x \equiv {opposite} \pmod{{{modulus}}}",
        rf"x \equiv {residue}, -{residue} \pmod{{{modulus}}}",
    ]
    wrong = [
        rf"x \equiv {residue} \pmod{{{modulus}}}",
        rf"x \equiv \pm{residue} \pmod{{{2 * modulus}}}",
        rf"x \equiv {residue}, {opposite + 1} \pmod{{{modulus}}}",
        rf"x \equiv 0, {residue}, {opposite} \pmod{{{modulus}}}",
        rf"y \equiv \pm{residue} \pmod{{{modulus}}}",
        rf"\pm{residue}",
    ]
    return Pairs(gold, same, wrong)


@answer_class("arbitrary constant")
def _constant(rng: random.Random) -> Pairs:
    a, b = signed(rng, 2, 9), signed(rng, 1, 9)
    linear = total((b, "x"))
    gold, wrong_rate = f"y=Ce^{{{a}x}}{linear if b < 0 else '+' + linear}", f"e^{{{a + 1}x}}"
    rest = gold.partition("}")[2]
    same = [
        f"y=Ae^{{{a}x}}{rest}",
        f"y = K e^{{{a}x}}{rest}",
        f"y(x)=C_1e^{{{a}x}}{rest}",
        rf"y=c\exp({a}x){rest}",
        f"y={linear}+Be^{{{a}x}}",
        f"Ae^{{{a}x}}{rest}",
    ]
    wrong = [
        f"y=A{wrong_rate}{rest}",
        f"y=e^{{{a}x}}{rest}",
        f"y=3e^{{{a}x}}{rest}",
        f"y=Axe^{{{a}x}}{rest}",
        f"y=e^{{{a}x}}{rest}+A",
        f"y=Ae^{{{a}t}}{rest}",
        f"y=(A+B)e^{{{a}x}}{rest}",
        f"y=Ae^{{{-a}x}}{rest}",
    ]
    return Pairs(gold, same, wrong)


@answer_class("two arbitrary constants")
def _two_constants(rng: random.Random) -> Pairs:
    a, b = rng.sample([-5, -4, -3, -2, 2, 3, 4, 5], 2)
    gold = f"y=C_1e^{{{a}x}}+C_2e^{{{b}x}}"
    same = [
        f"y=Ae^{{{a}x}}+Be^{{{b}x}}",
        f"y=C_2e^{{{a}x}}+C_1e^{{{b}x}}",
        f"y=c_1e^{{{b}x}}+c_2e^{{{a}x}}",
        f"y(x) = A e^{{{a}x}} + B e^{{{b}x}}",
        f"C_{{1}}e^{{{a}x}}+C_{{2}}e^{{{b}x}}",
    ]
    wrong = [
        f"y=Ae^{{{a}x}}+Ae^{{{b}x}}",
        f"y=Ae^{{{a}x}}",
        f"y=Ae^{{{a}x}}+Be^{{{b + 1}x}}",
        f"y=Ae^{{{a}x}}+Bxe^{{{a}x}}",
        f"y=A+Be^{{{b}x}}",
        f"y=e^{{{a}x}}+e^{{{b}x}}",
        f"y=Ae^{{{a}x}}e^{{{b}x}}+B",
    ]
    return Pairs(gold, same, wrong)


@answer_class("antiderivative")
def _antiderivative(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 9), signed(rng, 1, 9)
    square = f"({total((1, 'x'), (b, ''))})^2"
    gold = rf"\frac{{{square}}}{{{a}}}+C"
    same = [
        rf"\frac{{x^2{2 * b:+d}x}}{{{a}}}+C",
        rf"\frac{{1}}{{{a}}}{square}+K",
        rf"C+\frac{{{square}}}{{{a}}}",
        rf"\frac{{x^2}}{{{a}}}{'+' * (b > 0)}{fraction(Fraction(2 * b, a))}x+C",
        rf"\frac{{{square}}}{{{a}}}+\text{{constant}}",
    ]
    wrong = [
        rf"\frac{{x^2}}{{{a}}}+C",
        rf"\frac{{x^2{2 * b + 1:+d}x}}{{{a}}}+C",
        rf"\frac{{{square}}}{{{a + 1}}}+C",
        rf"\frac{{{square}}}{{{a}}}+Cx",
        rf"C\frac{{{square}}}{{{a}}}",
        rf"\frac{{{square}}}{{{a}}}+5",
        rf"\frac{{{square}}}{{{a}}}+A+B",
    ]
    return Pairs(gold, same, wrong)


@answer_class("family of curves")
def _curves(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    gold = f"{a}x^2+{b}y^2=C"
    same = [f"{a}x^2+{b}y^2=K", f"{b}y^2+{a}x^2=C_1", f"{a}x^2 + {b}y^2 = c", f"{b}y^2=C-{a}x^2"]
    wrong = [
        f"{a}x^2-{b}y^2=K",
        f"{a}x^2+{b}y^2=1",
        f"{a + b}x^2+{b}y^2=K",
        f"{a}x^2+{b}y=K",
        f"{a}x^2+Ky^2=1",
        f"{a}x+{b}y=K",
    ]
    return Pairs(gold, same, wrong)


@answer_class("quantity with the name of a constant")
def _quantity(rng: random.Random) -> Pairs:
    a = rng.randint(2, 9)
    gold = rf"\frac{{1}}{{{a}}}CV^2"
    same = [rf"\frac{{CV^2}}{{{a}}}", rf"\frac{{1}}{{{a}}}V^2C", rf"CV^2/{a}"]
    wrong = [
        rf"\frac{{1}}{{{a}}}KV^2",
        rf"\frac{{AV^2}}{{{a}}}",
        rf"\frac{{1}}{{{a}}}C_1V^2",
        rf"\frac{{1}}{{{a + 1}}}CV^2",
        rf"\frac{{1}}{{{a}}}CV",
        rf"\frac{{1}}{{{a}}}V^2",
    ]
    return Pairs(gold, same, wrong)


@answer_class("column for a tuple")
def _column(rng: random.Random) -> Pairs:
    cells = [signed(rng, 1, 15) for _ in range(rng.choice([2, 3, 3, 4]))]
    texts = [str(cell) for cell in cells]

    def column(parts: list[str]) -> str:
        return r"\begin{pmatrix}" + r"\\".join(parts) + r"\end{pmatrix}"

    inline = f"({','.join(texts)})"
    is_column = rng.random() < 0.5
    gold = column(texts) if is_column else inline
    same = [
        inline if is_column else column(texts),
        column(texts).replace("pmatrix", "bmatrix"),
        rf"\mathbf{{v}}={column(texts)}",
        rf"\langle {', '.join(texts)}\rangle",
        rf"\begin{{pmatrix}}{'&'.join(texts)}\end{{pmatrix}}^T",
    ]
    changed = [*texts[:-1], str(cells[-1] + 1)]
    wrong = [
        column(changed),
        f"({','.join(changed)})",
        f"({','.join(texts)},0)",
        column([*texts, "0"]),
        f"-{column(texts)}",
        str(sum(cells)),
    ]
    if cells != cells[::-1]:
        wrong.append(column(texts[::-1]))
    return Pairs(gold, same, wrong)


@answer_class("value of a named function")
def _named_function(rng: random.Random) -> Pairs:
    n, k = rng.randint(5, 14), rng.randint(2, 3)
    permutations = n * (n - 1) * (n - 2 if k == 3 else 1)
    factorial = 1
    for step in range(2, n):
        factorial *= step
    totient = sum(all(n % d or m % d for d in range(2, n + 1)) for m in range(1, n + 1))
    gold, same, wrong = rng.choice(
        [
            (
                str(permutations),
                [f"P({n},{k})", rf"{{}}_{{{n}}}P_{{{k}}}", f"^{n}P_{k}", rf"\frac{{{n}!}}{{{n - k}!}}"],
                [f"P({n},{k + 1})", f"P({n + 1},{k})", rf"\binom{{{n}}}{{{k}}}", f"{{}}_{{{n}}}P_{{1}}", f"({n},{k})"],
            ),
            (
                str(factorial),
                [rf"\Gamma({n})", f"{n - 1}!", rf"\Gamma\left({n}\right)", rf"{n - 1}\Gamma({n - 1})"],
                [rf"\Gamma({n + 1})", rf"\Gamma({n - 1})", rf"{n}\Gamma", f"{n}!", r"\Gamma"],
            ),
            (
                str(totient),
                [rf"\varphi({n})", rf"\phi({n})", rf"\varphi({n})={totient}"],
                [rf"{n}\varphi", rf"\varphi({totient + n})+{n}", rf"\varphi({n})+1", r"\varphi", str(totient + 1)],
            ),
            (
                rf"\frac{{\pi^2}}{{{6 * n}}}",
                [rf"\frac{{\zeta(2)}}{{{n}}}", rf"\frac{{1}}{{{n}}}\zeta(2)", rf"\frac{{\pi^{{2}}}}{{{6 * n}}}"],
                [
                    rf"\frac{{\zeta(3)}}{{{n}}}",
                    rf"\frac{{\zeta(2)}}{{{n + 1}}}",
                    rf"\frac{{2\zeta}}{{{n}}}",
                    r"\zeta(4)",
                ],
            ),
        ]
    )
    return Pairs(gold, same, wrong)


@answer_class("thousands mark in brackets")
def _grouped(rng: random.Random) -> Pairs:
    whole, low = rng.randint(1, 40), rng.randint(0, 99)
    gold = f"({whole},{low:03d})"
    same = [f"{whole},{low:03d}", f"{whole}{low:03d}", f"({whole}{low:03d})", rf"{whole}{{,}}{low:03d}"]
    wrong = [f"({whole},{low})", f"({low},{whole})", f"{whole}{low:03d}0", str(whole), f"({whole},{low + 1:03d})"]
    return Pairs(gold, same, wrong)
