r"""Generated classes of numbers: notations of integers, fractions, decimals, powers of ten, amounts, constants."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from bench.forms.form import decimal, fraction
from bench.forms.generated import Pairs, answer_class, signed

_NUMERALS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def _digits(number: int, base: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, base)
        text = str(digit) + text
    return text or "0"


def _proper(rng: random.Random, limit: int = 30) -> Fraction:
    while True:
        value = Fraction(rng.randint(1, limit), rng.randint(2, limit))
        if value.denominator > 1:
            return value


@answer_class("integer")
def _integer(rng: random.Random) -> Pairs:
    n = signed(rng, 2, 99_999)
    same = [f"{n}.0", f"{n:,}", f"{n:,}".replace(",", "{,}"), f"{n:,}".replace(",", r"\,"), rf"\frac{{{3 * n}}}{{3}}"]
    same += [
        f"x={n}",
        f"({n})",
        rf"\boxed{{{n}}}",
        f"{n - 7}+7",
        rf"{n}\cdot 1",
        rf"\text{{{n}}}",
        f"{2 * n}/2",
        f"${n}$",
    ]
    other = [str(n + 1), str(n - 1), str(-n), f"{n}.5", f"{n}0", f"1{n}" if n > 0 else str(n * 11), f"{n},{n + 1}"]
    return Pairs(str(n), same, [*other, rf"\frac{{{n}}}{{2}}", f"{n}x", rf"{n}\pi", rf"\pm {abs(n)}", f"x>{n}"])


@answer_class("large integer")
def _large_integer(rng: random.Random) -> Pairs:
    n = rng.randint(10**6, 10**12)
    groups = f"{n:,}"
    same = [groups, groups.replace(",", "{,}"), groups.replace(",", r",\!"), groups.replace(",", r"\,"), f"{n}.0"]
    same += [groups.replace(",", " "), f"x = {groups}", rf"\text{{{groups}}}", f"{n - 1}+1"]
    other = [str(n + 1), str(n - 1000), f"{n}0", f"{n + 10:,}", f"{n // 10}", f"{groups}.1", rf"{n}\cdot 10"]
    return Pairs(str(n), same, other)


@answer_class("fraction")
def _fraction(rng: random.Random) -> Pairs:
    value = _proper(rng) * rng.choice([1, 1, -1])
    p, q = value.numerator, value.denominator
    same = [
        f"{p}/{q}",
        fraction(value, command=r"\dfrac"),
        fraction(value, 3),
        rf"\frac{{{-p}}}{{{-q}}}",
        f"{5 * p}/{5 * q}",
    ]
    same += [rf"{p}\cdot\frac{{1}}{{{q}}}", rf"{p} \div {q}", rf"x = \frac{{{p}}}{{{q}}}", rf"{p}\cdot {q}^{{-1}}"]
    same += [rf"\frac{{{p - q}}}{{{q}}}+1", rf"{{{p} \over {q}}}", f"{p}./{q}", f"({p})/({q})"]
    other = [f"{p + 1}/{q}", f"{p}/{q + 1}", fraction(-value), rf"\frac{{{q}}}{{{p}}}", f"{float(value):.3f}1", str(p)]
    other += [f"{p},{q}", rf"\frac{{{p * p}}}{{{q * q}}}", rf"\sqrt{{{abs(value)}}}", rf"\frac{{{10 * p}}}{{{q}}}"]
    if decimal(value) is None:
        other += [f"{float(value):.2f}", f"{float(value):.4f}"]
    return Pairs(fraction(value), same, [text for text in other if abs(value) != 1])


@answer_class("fraction of single digits")
def _short_fraction(rng: random.Random) -> Pairs:
    p, q = rng.choice([(a, b) for a in range(1, 10) for b in range(2, 10) if math.gcd(a, b) == 1])
    same = [rf"\frac{p}{q}", rf"\frac {p} {q}", rf"\frac{{{p}}}{q}", rf"\frac{p}{{{q}}}", rf"\tfrac{p}{q}", f"{p}/{q}"]
    same += [rf"\frac{{{p}}}{{{q}}}", rf"\dfrac {p}{q}", f"{p}./{q}", f"{p}.0/{q}"]
    other = [rf"\frac{q}{p}" if p > 1 else "0", rf"-\frac{p}{q}", rf"\frac{p}{q}1", rf"\frac{{{p}}}{{{q}1}}", f"{p}{q}"]
    return Pairs(rf"\frac{p}{q}", same, [*other, f"{p}.{q}1", rf"\frac{{{p}{q}}}{{1}}", rf"\frac{{{p}}}{{{q}}}1"])


@answer_class("mixed number")
def _mixed_number(rng: random.Random) -> Pairs:
    whole, part = rng.randint(1, 40), Fraction(rng.randint(1, 8), 9)
    value, tail = whole + part, f"{{{part.numerator}}}{{{part.denominator}}}"
    same = [rf"{whole} \frac{tail}", rf"{whole}\dfrac{tail}", fraction(value), f"{value}", rf"{whole}+\frac{tail}"]
    same += [
        f"{whole} {part.numerator}/{part.denominator}",
        rf"{whole}\,\frac{tail}",
        rf"{whole + 1}-{fraction(1 - part)}",
    ]
    other = [fraction(whole * part), fraction(value + 1), fraction(whole - part), rf"{whole}, \frac{tail}", f"-{value}"]
    return Pairs(rf"{whole}\frac{tail}", same, [*other, rf"{whole}\cdot\frac{tail}", str(whole)])


@answer_class("decimal")
def _decimal(rng: random.Random) -> Pairs:
    places = rng.randint(1, 6)
    n = rng.randint(11, 99_999)
    n += n % 10 == 0
    value = Fraction(n, 10**places)
    text = str(decimal(value))
    same = [
        text + "0",
        fraction(value),
        rf"\frac{{{n}}}{{{10**places}}}",
        rf"{n}\cdot 10^{{-{places}}}",
        f"{n}e-{places}",
    ]
    same += [
        rf"{n} \times 10^{{-{places}}}",
        f"x={text}",
        rf"{text}\text{{ m}}",
        f"{n}E-{places}",
        f"({text})",
        f"+{text}",
    ]
    same += [text.removeprefix("0")] if value < 1 else []
    step = Fraction(1, 10**places)
    other = [str(decimal(value + step)), str(decimal(value - step)), str(decimal(10 * value)), f"-{text}", f"{text}1"]
    comma = "{,}" if places == 1 else ","  # `3,5` is a list; three digits have a mark of thousands
    (other if places == 3 else same).append(text.replace(".", comma))
    return Pairs(text, same, [*other, f"{n}e-{places + 1}", f"{n}e{places}", str(n)])


@answer_class("power of ten with a whole mantissa")
def _scientific(rng: random.Random) -> Pairs:
    m, k = rng.randint(1, 9), rng.choice([-12, -9, -8, -6, -5, -4, -3, 3, 4, 5, 6, 8, 12, 23, 33])
    value = m * Fraction(10) ** k
    plain = str(decimal(value))
    same = [rf"{m} \times 10^{{{k}}}", rf"{m}\cdot 10^{{{k}}}", plain, f"{m}E{k}", f"{m}.0e{k}", f"{m}*10^{k}"]
    same += [rf"{10 * m}\times 10^{{{k - 1}}}", f"{m}e+{k}" if k > 0 else f"{m}E{k}", rf"{m}\cdot{{10}}^{{{k}}}"]
    same += [f"10^{{{k}}}", rf"\frac{{1}}{{10^{{{-k}}}}}"] if m == 1 else []
    other = [
        f"{m}e{k + 1}",
        f"{m}e{k - 1}",
        f"{m + 1}e{k}",
        f"-{m}e{k}",
        rf"{m}\times 10^{{{-k}}}",
        f"{plain}1",
        f"{m}.1e{k}",
    ]
    return Pairs(f"{m}e{k}", same, [*other, f"{m}", rf"{m} \times 10^{{{k}}}i", rf"{m + 1} \times 10^{{{k}}}"])


@answer_class("power of ten with a decimal mantissa")
def _scientific_decimal(rng: random.Random) -> Pairs:
    n, k = rng.randint(101, 999), rng.choice([-34, -31, -27, -19, -11, -7, 6, 8, 15, 24, 30])
    n += n % 10 == 0
    m = f"{n // 100}.{n % 100:02d}"
    same = [
        rf"{m} \times 10^{{{k}}}",
        rf"{m}\cdot 10^{{{k}}}",
        f"{m}E{k}",
        rf"{n}\times 10^{{{k - 2}}}",
        f"{n}e{k - 2}",
    ]
    same += [rf"\frac{{{n}}}{{100}}\cdot 10^{{{k}}}", f"{m}*10^{k}", rf"0.{n}\times 10^{{{k + 1}}}", f"{m}0e{k}"]
    other = [
        f"{m}e{k + 1}",
        f"{m}1e{k}",
        f"-{m}e{k}",
        rf"{m} \times 10^{{{-k}}}",
        f"{n + 1}e{k - 2}",
        f"{n - 1}e{k - 2}",
    ]
    return Pairs(f"{m}e{k}", same, [*other, f"{m}", "0", rf"{m} \times 10^{{{k - 1}}}", f"{n}e{k}"])


@answer_class("tiny number")
def _tiny(rng: random.Random) -> Pairs:
    n, k = rng.randint(11, 99), rng.randint(16, 45)
    n += n % 10 == 0
    gold = rf"{n} \times 10^{{-{k}}}"
    same = [
        f"{n}e-{k}",
        rf"\frac{{{n}}}{{10^{{{k}}}}}",
        rf"{2 * n}\cdot 10^{{-{k}}}/2",
        rf"\frac{{{10 * n}}}{{10^{{{k + 1}}}}}",
    ]
    other = [f"{n + 1}e-{k}", f"-{n}e-{k}", f"{n}e-{k + 1}", f"{n}e-{k - 1}", "0", f"{99 - n + 100}e-{k + 3}", "1e-31"]
    other += [rf"{n}\cdot 10^{{-{k + 5}}}", rf"\frac{{1}}{{{n}\cdot 10^{{{k}}}}}", rf"{n}.001\times 10^{{-{k}}}"]
    return Pairs(gold, same, other)


@answer_class("power of a number below one")
def _small_power(rng: random.Random) -> Pairs:
    base, k = rng.choice([("0.5", "2"), ("0.2", "5"), ("0.1", "10"), ("0.25", "4")]), rng.randint(55, 95)
    text, inverse = base
    same = [
        rf"\frac{{1}}{{{inverse}^{{{k}}}}}",
        rf"\left(\frac{{1}}{{{inverse}}}\right)^{{{k}}}",
        rf"{inverse}^{{-{k}}}",
    ]
    same += [rf"{text}^{{{k - 1}}}\cdot {text}", rf"1/{inverse}^{{{k}}}", rf"{text}^{{{k + 1}}}/{text}"]
    other = [
        rf"{text}^{{{k + 1}}}",
        rf"{text}^{{{k - 1}}}",
        rf"{text}^{{{k - 10}}}",
        "0",
        rf"-{text}^{{{k}}}",
    ]
    return Pairs(rf"{text}^{{{k}}}", same, [*other, rf"\frac{{1}}{{{inverse}^{{{k}}}+1}}", rf"1-{text}^{{{k}}}"])


@answer_class("difference of large powers")
def _large_power(rng: random.Random) -> Pairs:
    base, k = rng.randint(2, 12), rng.randint(60, 150)
    n = rng.randint(1, 9)
    same = [rf"{n}+{base}^{{{k}}}", str(base**k + n), rf"{base}\cdot {base}^{{{k - 1}}}+{n}", rf"({base}^{{{k}}}+{n})"]
    same += [rf"{base}^{{{k}}}+{n + 1}-1"]
    other = [
        rf"{base}^{{{k}}}",
        rf"{base}^{{{k}}}+{n + 1}",
        rf"{base}^{{{k}}}-{n}",
        str(base**k + n - 1),
        rf"{base}^{{{k + 1}}}+{n}",
    ]
    return Pairs(rf"{base}^{{{k}}}+{n}", same, [*other, f"{base**k + n}0", rf"{base}^{{{k}}}+{n}.5"])


@answer_class("repeating decimal")
def _repeating(rng: random.Random) -> Pairs:
    period, start = str(rng.choice([*range(1, 9), 12, 27, 36, 45, 81])), rng.choice(["", "", "1", "4", "25"])
    if start[-1:] == period:
        start = ""
    whole = rng.choice([0, 0, 1, 7])
    shift = 10 ** len(start)
    value = whole + Fraction(int(start or 0), shift) + Fraction(int(period), shift * (10 ** len(period) - 1))
    text = f"{whole}.{start}"
    same = [fraction(value), f"{value}", rf"{text}\bar{{{period}}}", rf"{text}{period}\overline{{{period}}}"]
    same += [
        f"{text}{period * 3}...",
        rf"{text}{period * 3}\ldots",
        rf"{text}{period * 4}\dots",
        rf"x={text}\overline{{{period}}}",
    ]
    same += [rf"{text}\bar {period}"] if len(period) == 1 else []
    same += [f"{text}{period * 6}"] if period in "1234" else []
    wrong = str((int(period) + 1) % 10 or 2)
    other = [
        text + period,
        rf"{text}\overline{{{wrong}}}",
        f"{text}{period}{period}"[:6],
        rf"-{text}\overline{{{period}}}",
    ]
    other += [fraction(value + Fraction(1, 1000)), rf"{whole + 1}.{start}\overline{{{period}}}", fraction(1 / value)]
    return Pairs(rf"{text}\overline{{{period}}}", same, [*other, rf"{text}0\overline{{{period}}}"])


@answer_class("percent")
def _percent(rng: random.Random) -> Pairs:
    n = rng.randint(1, 99)
    value = Fraction(n, 100)
    same = [
        str(n),
        f"{n}%",
        rf"{n}\text{{ percent}}",
        f"{n} percent",
        fraction(value),
        str(decimal(value)),
        rf"{n}.0\%",
    ]
    same += [rf"\frac{{{2 * n}}}{{2}}\%", rf"\text{{{n}\%}}", rf"{n}\,\%"]
    other = [
        rf"{n + 1}\%",
        rf"-{n}\%",
        rf"{n}.5\%",
        f"{n}0",
        str(decimal(value / 10)),
        str(n - 1),
        rf"\frac{{{n}}}{{10}}\%",
    ]
    return Pairs(rf"{n}\%", same, other)


@answer_class("percent of a fraction")
def _percent_fraction(rng: random.Random) -> Pairs:
    whole, part = (
        rng.randint(1, 90),
        rng.choice([Fraction(1, 3), Fraction(2, 3), Fraction(1, 7), Fraction(5, 6), Fraction(2, 9)]),
    )
    value, tail = whole + part, f"{{{part.numerator}}}{{{part.denominator}}}"
    same = [
        rf"{fraction(value)}\%",
        rf"{whole}\dfrac{tail}\%",
        rf"{whole} {part}\%",
        rf"{value}\%",
        fraction(value / 100),
    ]
    same += [rf"{whole}\frac{tail}\text{{ percent}}", rf"{whole}\frac{tail}", f"{value / 100}", rf"{whole}\frac{tail}%"]
    other = [
        rf"{whole + 1}\frac{tail}\%",
        rf"{fraction(value + Fraction(1, 3))}\%",
        fraction(value / 10),
        rf"{whole}\%",
    ]
    return Pairs(
        rf"{whole}\frac{tail}\%", same, [*other, fraction(value / 100 + Fraction(1, 100)), rf"-{fraction(value)}\%"]
    )


@answer_class("money")
def _money(rng: random.Random) -> Pairs:
    cents = rng.randint(101, 9_999_999)
    cents += cents % 10 == 0
    whole, rest = divmod(cents, 100)
    plain, grouped = f"{whole}.{rest:02d}", f"{whole:,}.{rest:02d}"
    same = [
        rf"\${grouped}",
        plain,
        grouped,
        f"${plain}$",
        rf"{plain}\text{{ dollars}}",
        f"{plain} dollars",
        f"USD {plain}",
    ]
    same += [rf"\$ {plain}", rf"x=\${plain}", grouped.replace(",", "{,}"), rf"\text{{\${grouped}}}"]
    other = [
        rf"\${whole}.{(rest + 1) % 100:02d}",
        rf"\$1{plain}",
        rf"{plain}\text{{ cents}}",
        rf"-\${plain}",
        f"{cents}",
    ]
    return Pairs(rf"\${plain}", same, [*other, f"{plain}1", rf"\${whole + 1}.{rest:02d}"])


_UNITS = {
    "cm": ("centimeters", "m"), "m": ("meters", "km"), "km": ("kilometers", "miles"), "kg": ("kilograms", "g"),
    "hours": ("hours", "minutes"), "minutes": ("min", "seconds"), "feet": ("ft", "inches"), "miles": ("mi", "km"),
}  # fmt: skip


@answer_class("amount with a unit")
def _unit(rng: random.Random) -> Pairs:
    unit = rng.choice(list(_UNITS))
    n = rng.randint(2, 999)
    long_, wrong = _UNITS[unit]
    same = [
        str(n),
        rf"{n} \text{{ {unit}}}",
        rf"{n}\,\mathrm{{{unit}}}",
        f"{n} {unit}",
        rf"{n}\text {{ {unit} }}",
        f"{n} {long_}",
    ]
    same += [
        rf"{n}~\text{{{long_}}}",
        rf"x={n}\text{{ {unit}}}",
        rf"{n}.0\mbox{{ {unit}}}",
        rf"\frac{{{2 * n}}}{{2}}\text{{ {unit}}}",
    ]
    other = [
        rf"{n}\text{{ {wrong}}}",
        rf"{n + 1}\text{{ {unit}}}",
        rf"-{n}\text{{ {unit}}}",
        rf"{n}\text{{ {unit}}}^2",
        f"{n} {wrong}",
    ]
    return Pairs(rf"{n}\text{{ {unit}}}", same, [*other, rf"{n}.5\text{{ {unit}}}", rf"{10 * n}\text{{ {unit}}}"])


_NOUNS = "eggs apples students ways books marbles games tickets coins"


@answer_class("counted things")
def _counted(rng: random.Random) -> Pairs:
    n, noun = rng.randint(2, 400), rng.choice(_NOUNS.split())
    same = [
        f"{n} {noun}",
        rf"{n}\text{{ {noun}}}",
        rf"{n}\ \text{{{noun}}}",
        rf"{n} \text {{{noun}}}",
        str(n),
        rf"x={n}\text{{ {noun}}}",
    ]
    same += [rf"{n}~\mathrm{{{noun}}}", rf"\frac{{{2 * n}}}{{2}}\text{{ {noun}}}", f"{n} different {noun}"]
    other = [
        f"{n + 1} {noun}",
        f"{n - 1} {noun}",
        rf"{n}.5\text{{ {noun}}}",
        f"{n}0 {noun}",
        rf"-{n}\text{{ {noun}}}",
    ]
    gold = rng.choice([f"{n} {noun}", str(n), rf"{n}\text{{ {noun}}}"])
    return Pairs(gold, same, [*other, rf"\frac{{{n}}}{{2}}\text{{ {noun}}}"])


@answer_class("angle")
def _angle(rng: random.Random) -> Pairs:
    n = rng.randint(1, 359)
    same = [
        str(n),
        f"{n}°",
        rf"{n}^{{\circ}}",
        rf"{n}\text{{ degrees}}",
        f"{n} degrees",
        rf"{n}\degree",
        rf"x={n}^\circ",
    ]
    same += [rf"\angle ABC = {n}^\circ", rf"{n}.0^\circ", rf"({n})^\circ", rf"\theta = {n}^{{\circ}}"]
    other = [rf"{n + 1}^\circ", rf"-{n}^\circ", rf"{n}.5^\circ", rf"{n}\text{{ radians}}", rf"{n}\pi", rf"{n}0^\circ"]
    return Pairs(rf"{n}^\circ", same, other)


@answer_class("name of a base")
def _base(rng: random.Random) -> Pairs:
    base, n = rng.randint(3, 9), rng.randint(30, 4000)
    digits, wrong = _digits(n, base), _digits(n + 1, base)
    same = [
        f"{digits}_{{{base}}}",
        f"({digits})_{base}",
        digits,
        f"{digits} _ {base}",
        rf"{digits}\text{{ base }}{base}",
    ]
    same += [f"x={digits}_{base}", rf"{digits}_{{\text{{{base}}}}}", rf"\left({digits}\right)_{{{base}}}"]
    other = [f"{wrong}_{base}", wrong, f"{digits}_{base + 1}", f"{digits}0_{base}", f"-{digits}_{base}", f"{n}_{{10}}"]
    return Pairs(f"{digits}_{base}", same, [text for text in other if text != f"{digits}_{{10}}"])


@answer_class("name of a base in words")
def _base_words(rng: random.Random) -> Pairs:
    base, n = rng.randint(3, 9), rng.randint(30, 4000)
    name, digits = _NUMERALS[base - 2], _digits(n, base)
    same = [
        rf"{digits}_{{\text{{{name}}}}}",
        rf"{digits}_\text{{{name}}}",
        f"{digits}_{base}",
        f"{digits} base {name}",
        digits,
    ]
    same += [
        rf"{digits}\text{{ (base {name})}}",
        rf"{digits}\text{{ base {name}}}",
        rf"{digits}_{{\mathrm{{{name}}}}}",
    ]
    wrong = _NUMERALS[base - 1]
    other = [
        rf"{digits}_{{\text{{{wrong}}}}}",
        f"{_digits(n + 1, base)}_{base}",
        f"{digits} base {wrong}",
        f"{digits}1_{base}",
    ]
    gold = rng.choice([f"{digits}_{base}", rf"{digits}_{{\text{{{name}}}}}"])
    return Pairs(gold, same, [*other, f"-{digits}_{base}"])


@answer_class("root")
def _root(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 20), rng.choice([2, 3, 5, 6, 7, 10, 11, 13, 15])
    same = [
        rf"{a} \sqrt {{{b}}}",
        rf"\sqrt{{{a * a * b}}}",
        rf"{a}\cdot\sqrt{{{b}}}",
        rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        f"{a}*sqrt({b})",
    ]
    same += [
        rf"{a}\cdot {b}^{{1/2}}",
        rf"{a}√{b}",
        rf"\sqrt[2]{{{a * a * b}}}",
        rf"{a}\cdot {b}^{{0.5}}",
        rf"x={a}\sqrt{{{b}}}",
    ]
    same += [rf"{a}\sqrt{b}"] if b < 10 else []
    other = [
        rf"{a}\sqrt{{{b + 1}}}",
        rf"{a + 1}\sqrt{{{b}}}",
        rf"-{a}\sqrt{{{b}}}",
        rf"\sqrt{{{a * b}}}",
        rf"{a}\sqrt[3]{{{b}}}",
    ]
    other += [f"{a * math.sqrt(b):.3f}", str(a * b), rf"\pm {a}\sqrt{{{b}}}", rf"{a}+\sqrt{{{b}}}"]
    return Pairs(rf"{a}\sqrt{{{b}}}", same, other)


@answer_class("nested and higher roots")
def _nested_root(rng: random.Random) -> Pairs:
    a, b, k = rng.randint(2, 9), rng.choice([2, 3, 5, 7]), rng.randint(3, 5)
    gold = rf"{a}\sqrt[{k}]{{{b}}}"
    same = [
        rf"\sqrt[{k}]{{{a**k * b}}}",
        rf"{a} \cdot {b}^{{\frac{{1}}{{{k}}}}}",
        rf"{a}\cdot {b}^{{1/{k}}}",
        rf"\sqrt[{k}]{{{b}}}\cdot {a}",
    ]
    same += [rf"{a}\sqrt{{\sqrt[{k}]{{{b * b}}}}}", rf"\frac{{{2 * a}\sqrt[{k}]{{{b}}}}}{{2}}"]
    other = [
        rf"{a}\sqrt[{k + 1}]{{{b}}}",
        rf"{a}\sqrt{{{b}}}",
        rf"\sqrt[{k}]{{{a * b}}}",
        rf"-{gold}",
        rf"{a + 1}\sqrt[{k}]{{{b}}}",
    ]
    return Pairs(gold, same, [*other, rf"{a}\sqrt[{k}]{{{b + 1}}}", f"{a * b ** (1 / k):.4f}"])


@answer_class("sum of roots")
def _sum_of_roots(rng: random.Random) -> Pairs:
    a, b = rng.sample([2, 3, 5, 6, 7, 10, 11, 13], 2)
    c = rng.randint(2, 9)
    same = [
        rf"\sqrt{{{b}}}+{c}\sqrt{{{a}}}",
        rf"\sqrt{{{c * c * a}}}+\sqrt{{{b}}}",
        rf"\sqrt{{{c * c * a + b}+{2 * c}\sqrt{{{a * b}}}}}",
    ]
    same += [
        rf"\frac{{{c * c * a - b}}}{{{c}\sqrt{{{a}}}-\sqrt{{{b}}}}}",
        rf"{c}\sqrt{{{a}}} + \sqrt{{{b}}}",
        rf"{c}*sqrt({a})+sqrt({b})",
    ]
    other = [
        rf"{c}\sqrt{{{a}}}-\sqrt{{{b}}}",
        rf"\sqrt{{{c * c * a + b}}}",
        rf"{c}\sqrt{{{a + b}}}",
        rf"{c}\sqrt{{{b}}}+\sqrt{{{a}}}",
    ]
    same = [text for text in same if c * c * a != b or "frac" not in text]
    return Pairs(rf"{c}\sqrt{{{a}}}+\sqrt{{{b}}}", same, [*other, rf"{c + 1}\sqrt{{{a}}}+\sqrt{{{b}}}"])


@answer_class("multiple of pi")
def _pi(rng: random.Random) -> Pairs:
    p, q = rng.randint(1, 40), rng.randint(2, 12)
    value = Fraction(p, q)
    p, q = value.numerator, value.denominator
    gold = rf"\frac{{{p}\pi}}{{{q}}}"
    same = [
        rf"\frac{{{p}}}{{{q}}}\pi",
        rf"{p}\pi/{q}",
        f"{p}π/{q}",
        rf"\pi\cdot\frac{{{p}}}{{{q}}}",
        rf"{p}*pi/{q}",
        rf"\frac{{{2 * p}\pi}}{{{2 * q}}}",
    ]
    same += [rf"\dfrac{{{p} \pi}}{{{q}}}", rf"\frac{{\pi}}{{{q}}}\cdot {p}", rf"x=\frac{{{p}\pi}}{{{q}}}"]
    other = [
        rf"\frac{{{p + 1}\pi}}{{{q}}}",
        rf"-{gold}",
        rf"\frac{{{p}}}{{{q}}}",
        rf"\frac{{{p}}}{{{q}\pi}}",
        f"{p * math.pi / q:.3f}",
    ]
    return Pairs(gold, same, [*other, rf"\frac{{{p}\pi^2}}{{{q}}}", rf"\frac{{{p}\pi}}{{{q}}}+\pi"])


@answer_class("thousands marks in an expression")
def _thousands(rng: random.Random) -> Pairs:
    n, tail = rng.randint(1001, 99_999), rng.choice([r"\pi", r"\sqrt{2}", r"\sqrt3", "x", "e"])
    groups = f"{n:,}"
    same = [
        f"{n}{tail}",
        f"{groups}{tail}",
        groups.replace(",", "{,}") + tail,
        groups.replace(",", r"\,") + tail,
        groups.replace(",", r",\!") + tail,
    ]
    same += [rf"{groups} {tail}", rf"{n}\cdot {tail}", rf"\frac{{{2 * n:,}{tail}}}{{2}}"]
    other = [
        f"{n + 1:,}{tail}",
        f"{n // 1000}{tail}",
        f"{n * 10:,}{tail}",
        groups,
        f"-{groups}{tail}",
        f"{groups}{tail}+1",
    ]
    return Pairs(groups.replace(",", "{,}") + tail, same, [*other, f"{n // 1000},{n % 1000 + 1}{tail}"])


@answer_class("logarithm")
def _logarithm(rng: random.Random) -> Pairs:
    a, b, k = rng.choice([2, 3, 5, 6, 7]), rng.choice([10, 11, 13, 14, 15]), rng.randint(2, 5)
    gold = rf"{k}\ln {a}"
    same = [
        rf"\ln {a**k}",
        rf"\ln({a**k})",
        rf"{k} \ln({a})",
        rf"\ln {a}^{k}",
        rf"{k}\cdot\ln\left({a}\right)",
        rf"-{k}\ln\frac{{1}}{{{a}}}",
    ]
    same += [rf"\ln {a * b}+\ln {a ** (k - 1)} - \ln {b}", rf"{k}*ln({a})", rf"{k}\log_{{{b}}} {a} \cdot \ln {b}"]
    other = [
        rf"{k + 1}\ln {a}",
        rf"{k}\ln {a + 1}",
        rf"\ln {a * k}" if a**k != a * k else "0",
        rf"-{gold}",
        f"{k * math.log(a):.3f}",
        rf"(\ln {a})^{k}",
    ]
    return Pairs(gold, same, [*other, rf"\ln {a}", rf"{k}\log_{{2}} {a}"])


@answer_class("exponential")
def _exponential(rng: random.Random) -> Pairs:
    a, k = rng.randint(2, 30), rng.randint(2, 9)
    gold = rf"{a}e^{{-{k}}}"
    same = [
        rf"\frac{{{a}}}{{e^{k}}}",
        rf"{a}\exp(-{k})",
        rf"e^{{-{k}}}\cdot {a}",
        f"{a}/e^{k}",
        rf"{a} \cdot \mathrm{{e}}^{{-{k}}}",
        rf"{a}*e^(-{k})",
    ]
    same += [rf"\frac{{{2 * a}e^{{-{k}}}}}{{2}}", rf"{a}e^{{-{k + 1}}}\cdot e"]
    other = [
        rf"{a}e^{{{k}}}",
        rf"{a + 1}e^{{-{k}}}",
        rf"{a}e^{{-{k + 1}}}",
        rf"-{a}e^{{-{k}}}",
        f"{a * math.exp(-k):.4f}",
        rf"{a}E^{{-{k}}}",
    ]
    return Pairs(gold, same, [*other, rf"{a}-e^{{-{k}}}"])


@answer_class("trigonometric value")
def _trigonometric(rng: random.Random) -> Pairs:
    n = rng.choice([n for n in range(1, 90) if n % 15])
    name, turned = rng.choice([("sin", "cos"), ("cos", "sin"), ("tan", "cot")])
    gold = rf"\{name} {n}^\circ"
    same = [
        rf"\{name}({n}^\circ)",
        rf"\{turned} {90 - n}^\circ",
        rf"\{name}{{{n}^{{\circ}}}}",
        rf"\{name}\frac{{{n}\pi}}{{180}}",
        rf"\{turned}({90 - n}°)",
    ]
    same += [rf"\{name}\left({n}^\circ\right)", rf"-\{name}(-{n}^\circ)" if name != "cos" else rf"\cos(-{n}^\circ)"]
    other = [
        rf"\{name} {n + 1}^\circ",
        rf"-\{name} {n}^\circ",
        rf"\{turned} {n}^\circ",
        rf"\{name}^2 {n}^\circ",
        rf"\{name} {n}",
    ]
    return Pairs(gold, same, [text for text in other if n != 45])


@answer_class("factorial and binomial")
def _counting(rng: random.Random) -> Pairs:
    n = rng.randint(6, 14)
    k = rng.randint(2, n // 2)
    value = math.comb(n, k)
    gold = rng.choice([rf"\binom{{{n}}}{{{k}}}", str(value)])
    same = [
        rf"\binom{{{n}}}{{{k}}}",
        str(value),
        rf"\dbinom{{{n}}}{{{n - k}}}",
        rf"\frac{{{n}!}}{{{k}!{n - k}!}}",
        rf"\frac{{{n}!}}{{{k}! \cdot {n - k}!}}",
    ]
    same += [
        rf"{n}!/({k}!({n - k})!)",
        rf"{{{n} \choose {k}}}",
        f"{value:,}",
        rf"\binom{{{n - 1}}}{{{k}}}+\binom{{{n - 1}}}{{{k - 1}}}",
    ]
    other = [
        rf"\binom{{{n + 1}}}{{{k}}}",
        str(value + 1),
        rf"\frac{{{n}!}}{{{k}!}}",
        rf"\frac{{{n}!}}{{{n - k}!}}",
        f"{n}!",
        f"-{value}",
    ]
    return Pairs(gold, same, [*other, str(value - 1), rf"\binom{{{n}}}{{{k - 1}}}"])


@answer_class("complex number")
def _complex(rng: random.Random) -> Pairs:
    a, b = signed(rng, 1, 20), rng.randint(2, 20)
    sign = rng.choice(["+", "-"])
    gold, c = f"{a}{sign}{b}i", b if sign == "+" else -b
    same = [
        f"{a} {sign} {b}i",
        f"{c}i{a:+d}",
        rf"{a}{sign}{b}\mathrm{{i}}",
        f"z = {gold}",
        rf"{a}{sign}{b}\cdot i",
        rf"\frac{{{2 * a}{2 * c:+d}i}}{{2}}",
    ]
    same += [f"-({-a}{-c:+d}i)", rf"({a}{sign}{b}i)", rf"i({c}-({a})i)", rf"{a}{sign}{b}\sqrt{{-1}}"]
    other = [
        f"{a}{'-' if sign == '+' else '+'}{b}i",
        f"{-a}{sign}{b}i",
        f"{a + 1}{sign}{b}i",
        f"{c}{a:+d}i",
        str(a),
        f"{c}i",
        f"{a + c}",
    ]
    other = [text for text in other if text != gold]
    return Pairs(gold, same, [*other, f"{a}{sign}{b}x"])


@answer_class("rounded exact value")
def _rounded(rng: random.Random) -> Pairs:
    n = rng.choice([n for n in range(2, 60) if math.isqrt(n) ** 2 != n])
    value = math.sqrt(n)
    gold = rf"\sqrt{{{n}}}"
    same = [f"{value:.{places}f}" for places in (6, 7, 8, 9, 10)] + [rf"{gold} \approx {value:.2f}"]
    other = [f"{value:.{places}f}" for places in (1, 2, 3, 4)] + [
        f"{value + 3e-6:.6f}",
        f"{value - 3e-6:.6f}",
        f"-{value:.8f}",
    ]
    return Pairs(gold, same, [*other, f"{value + 1e-7:.8f}", f"{value:.6f}7"])


@answer_class("ratio")
def _ratio(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    value = Fraction(a, b)
    a, b = value.numerator, value.denominator
    same = [
        f"{a} : {b}",
        rf"\frac{{{a}}}{{{b}}}",
        f"{a}/{b}",
        rf"{a}\colon {b}",
        f"{2 * a}:{2 * b}",
        rf"{a} \text{{ : }} {b}",
        rf"{a}\text{{ to }}{b}",
    ]
    other = [f"{b}:{a}", f"{a + 1}:{b}", f"{a}:{b + 1}", f"-{a}:{b}", f"{a},{b}", f"{a}:{b}:1"]
    return Pairs(f"{a}:{b}", same, [text for text in other if a != b])
