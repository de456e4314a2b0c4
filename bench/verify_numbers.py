r"""Rewritings and near misses of number-like answers: integers, fractions, decimals, radicals, pi, degrees, units.

For bench/verify.py. A form is a pattern over a gold answer (its spaces taken out) and two generators: texts that a
careful person would mark as the same answer, and texts that look like it but are another one. What two careful
persons may judge differently (a rounded decimal, an angle in radians) is in neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

Generator = Callable[[re.Match[str]], Iterator[str]]


class Form(NamedTuple):
    """One kind of answer."""

    name: str
    pattern: re.Pattern[str]
    same: Generator
    other: Generator


def decimal(value: Fraction) -> str | None:
    """A fraction as a finite decimal, or None when it has none."""
    digits = 0
    rest = value.denominator
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest //= 10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2
        digits += 1
    if rest != 1:
        return None
    scaled = abs(value.numerator) * 10**digits // value.denominator
    text = str(scaled).rjust(digits + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"


def fraction(value: Fraction, times: int = 1, command: str = r"\frac") -> str:
    """`\\frac{p}{q}`, both multiplied by `times`, the sign in front."""
    sign = "-" if value < 0 else ""
    return f"{sign}{command}{{{abs(value.numerator) * times}}}{{{value.denominator * times}}}"


def _integer_same(found: re.Match[str]) -> Iterator[str]:
    n = int(re.sub(r"[,\\!{}]", "", found[0]))
    sign, size = ("-" if n < 0 else ""), abs(n)
    yield from (f"{n}", f"{n}.0", f"{n}.000", f"{sign}00{size}", f"({n})", f"{n}/1", f"{3 * n}/3", f"x={n}", f"N = {n}")
    yield from (rf"\frac{{{2 * n}}}{{2}}", rf"\frac{{{n}}}{{1}}", f"{n - 1}+1", rf"\text{{{n}}}", rf"\mathbf{{{n}}}")
    yield from (rf"{n}\text{{ units}}", rf"{n}\text{{ cm}}", rf"{n} \cdot 1", rf"{n}\times 10^0", f"{2 * n} / 2")
    yield from (rf"1 \times {n}" if n >= 0 else f"\N{MINUS SIGN}{size}", rf"\textbf{{{n}}}", rf"\dfrac{{{5 * n}}}{{5}}")
    if n >= 0:
        yield from (f"+{n}", rf"\sqrt{{{n * n}}}", f"{n}^1")
    if size >= 1000:
        for comma in (",", "{,}", r"\,", r",\!", r"{,}\!", " "):
            yield f"{n:,}".replace(",", comma)


def _integer_other(found: re.Match[str]) -> Iterator[str]:
    n = int(re.sub(r"[,\\!{}]", "", found[0]))
    size = abs(n)
    yield from (f"{n + 1}", f"{n - 1}", f"{n}.5", f"{n}.001", f"{n},{n + 1}", f"({n},{n})", rf"\{{{n}, {n + 1}\}}")
    yield from (f"{n}+x", f"x={n + 1}", f"x>{n}", f"[{n},{n + 1}]", r"\text{none}", "x", f"{n}5")
    yield from (rf"{n} \text{{ or }} {n + 1}", rf"\text{{between }} {n} \text{{ and }} {n + 2}", rf"x \ne {n}")
    yield from (rf"\frac{{{2 * n + 1}}}{{2}}", f"{n}/0", f"1{n}", rf"\text{{not }} {n}", f"{n} ((( {n}")
    if n != 0:
        yield from (f"{-n}", f"{10 * n}", rf"\frac{{{n}}}{{2}}", rf"\pm {size}", f"{n}i", rf"{n}\pi", f"{n}+i", f"{n}x", f"{n}{size}")
    if size > 1:
        yield from (f"({n})^2", rf"\sqrt{{{size}}}", rf"\frac{{1}}{{{n}}}")
    if n > 9 and int(str(n)[::-1]) != n:
        yield str(n)[::-1]


def _fraction_value(found: re.Match[str]) -> Fraction:
    text = re.sub(r"\\[dt]?frac", "", found[0].replace("{", "").replace("}", " "))
    sign = -1 if text.startswith("-") else 1
    parts = text.lstrip("-").split()
    top, bottom = parts if len(parts) == 2 else (parts[0][:1], parts[0][1:])
    return sign * Fraction(int(top), int(bottom))


def _fraction_same(found: re.Match[str]) -> Iterator[str]:
    value = _fraction_value(found)
    p, q = value.numerator, value.denominator
    yield from (fraction(value), fraction(value, command=r"\dfrac"), fraction(value, command=r"\tfrac"), f"{p}/{q}")
    yield from (fraction(value, 2), fraction(value, 7), f"{3 * p}/{3 * q}", rf"\frac{{{-p}}}{{{-q}}}", f"({p})/({q})")
    yield from (rf"{p} \div {q}", rf"{p}\cdot\frac{{1}}{{{q}}}", rf"x = {fraction(value)}", rf"\left({fraction(value)}\right)")
    yield from (rf"\frac{{{p}}}{{{q}}}", rf"{{{p} \over {q}}}", rf"{p} \cdot {q}^{{-1}}", rf"\frac{{{p - q}}}{{{q}}} + 1")
    yield from (rf"\cfrac{{{p}}}{{{q}}}", rf"{fraction(value)}\text{{ cm}}", f"{p} / {q}")
    yield rf"P = \dfrac{{{p}}}{{{q}}}"
    if abs(p) < 10 and q < 10 and p > 0:
        yield from (rf"\frac{p}{q}", rf"\frac {p}{q}", rf"\frac{{{p}}}{q}", rf"\frac{p}{{{q}}}")
    if value > 1:
        yield from (rf"{p // q}\frac{{{p % q}}}{{{q}}}", rf"{p // q} + \frac{{{p % q}}}{{{q}}}")
    finite = decimal(value)
    if finite is not None:
        yield from (finite, finite + "0", finite.replace("0.", ".", 1) if abs(value) < 1 else f"x={finite}")


def _fraction_other(found: re.Match[str]) -> Iterator[str]:
    value = _fraction_value(found)
    p, q = value.numerator, value.denominator
    yield from (f"{p + 1}/{q}", f"{p}/{q + 1}", fraction(-value), rf"\frac{{{p - 1}}}{{{q}}}", rf"\frac{{{q}}}{{{p}}}")
    yield from (str(p), str(q), f"{float(value):.2f}1", rf"\frac{{{p}}}{{{q}}}x", rf"\frac{{{p * p}}}{{{q * q}}}")
    yield from (f"({p},{q})", f"{p},{q}", rf"\sqrt{{\frac{{{abs(p)}}}{{{q}}}}}", rf"\frac{{{p}}}{{{q}}}, 1", f"{p}-{q}")
    yield from (rf"1 - \frac{{{p}}}{{{q}}}" if 2 * p != q else "1", rf"\frac{{{p}}}{{{q}}} + \frac{{1}}{{{q}}}")
    yield from (rf"\text{{not }}\frac{{{p}}}{{{q}}}", rf"\frac{{{p}}}{{{q}}} ((", rf"\pm\frac{{{abs(p)}}}{{{q}}}")
    if decimal(value) is None:
        yield from (f"{float(value):.3f}", f"{float(value):.2f}", f"{float(value):.1f}")


def _mixed(found: re.Match[str]) -> tuple[int, Fraction]:
    return int(found[1]), Fraction(int(found[2]), int(found[3]))


def _mixed_same(found: re.Match[str]) -> Iterator[str]:
    whole, part = _mixed(found)
    value = whole + part
    small = f"{part.numerator}}}{{{part.denominator}"
    yield from (rf"{whole}\frac{{{small}}}", rf"{whole} \frac{{{small}}}", rf"{whole}\dfrac{{{small}}}")
    yield from (rf"{whole}\tfrac{{{small}}}", rf"{whole}+\frac{{{small}}}", rf"{whole}\,\frac{{{small}}}")
    yield from (rf"{whole}\ \frac{{{small}}}", rf"x = {whole}\frac{{{small}}}", rf"{whole}\frac{{{small}}}\text{{ cm}}")
    yield from (fraction(value), fraction(value, 3), f"{value.numerator}/{value.denominator}", rf"-\left(-{fraction(value)}\right)")
    yield from (rf"{whole + 1} - {fraction(1 - part)}", f"{whole} + {part.numerator}/{part.denominator}")
    finite = decimal(value)
    if finite is not None:
        yield from (finite, finite + "0")


def _mixed_other(found: re.Match[str]) -> Iterator[str]:
    whole, part = _mixed(found)
    yield from (fraction(whole * part), str(whole), fraction(part), fraction(whole + 1 + part), fraction(whole - part))
    yield from (rf"{whole}, {fraction(part)}", rf"{whole + 1}{fraction(part)}", fraction(-whole - part), f"({whole},{part})")
    yield from (rf"{whole} \cdot {fraction(part)}", rf"\frac{{{whole + part.numerator}}}{{{part.denominator}}}")


def _decimal_same(found: re.Match[str]) -> Iterator[str]:
    text = "0" + found[0] if found[0].startswith(".") else found[0]
    value = Fraction(text)
    power = len(text.partition(".")[2])
    digits = value * 10**power
    yield from (text, text + "0", text + "000", f"+{text}", f"0{text}", f"x={text}", rf"\text{{{text}}}", f"({text})")
    yield from (fraction(value), f"{value.numerator}/{value.denominator}", rf"\frac{{{digits}}}{{{10**power}}}")
    yield from (rf"{digits} \times 10^{{-{power}}}", rf"{digits}\cdot 10^{{-{power}}}", rf"{text}\text{{ units}}")
    yield from (rf"\mathbf{{{text}}}", rf"\frac{{{text}}}{{1}}", rf"{decimal(value * 100)}\%", rf"{2 * digits} \cdot 10^{{-{power}}} / 2")
    if value < 1:
        yield text.removeprefix("0")


def _decimal_other(found: re.Match[str]) -> Iterator[str]:
    text = "0" + found[0] if found[0].startswith(".") else found[0]
    value = Fraction(text)
    last = Fraction(1, 10 ** len(text.partition(".")[2]))
    for changed in (value + last, value - last, -value, value * 10, value / 10, value + 1, value + last / 10):
        yield str(decimal(changed))
    yield from (text[:-1] or "0", str(int(value)), f"{text}, 1", f"{text}x", fraction(1 / value), text.replace(".", ","))
    yield from (rf"{text}^2", rf"{text}\pi", fraction(value + last), rf"\pm {text}")


def _radical_same(found: re.Match[str]) -> Iterator[str]:
    sign, a, b, c = _radical(found)
    s, over = f"{sign}{a}\\sqrt{{{b}}}", f"/{c}" if c > 1 else ""
    yield from (rf"{sign}\frac{{{a}\sqrt{{{b}}}}}{{{c}}}", rf"{s}{over}", rf"({s}){over}", rf"{sign}{a}\cdot\sqrt{{{b}}}{over}")
    yield from (rf"{sign}{a} \times \sqrt{{{b}}}{over}", rf"{sign}\sqrt{{{b}}} \cdot {a}{over}", rf"x = {s}{over}")
    yield from (rf"{sign}\sqrt{{{a * a * b}}}{over}", rf"{sign}\frac{{{a * b}}}{{{c}\sqrt{{{b}}}}}", rf"{sign}{a} \cdot {b}^{{1/2}}{over}")
    yield from (rf"{sign}\frac{{{2 * a}\sqrt{{{b}}}}}{{{2 * c}}}", rf"{sign}{a}\sqrt[2]{{{b}}}{over}", rf"{sign}{a}√{b}{over}")
    yield from (rf"{sign}{a}*sqrt({b}){over}", rf"{sign}\frac{{{a}}}{{{c}}}\sqrt{{{b}}}", rf"{s}{over}\text{{ cm}}", rf"{sign}{a}\sqrt {{{b}}}{over}")
    yield from (rf"{sign}\dfrac{{{a} \sqrt{{{b}}}}}{{{c}}}", rf"{sign}\frac{{{a}\sqrt{{{4 * b}}}}}{{{2 * c}}}", rf"{sign}{a} \cdot {b}^{{\frac{{1}}{{2}}}}{over}")
    if a == 1:
        yield f"{sign}\\sqrt{{{b}}}{over}"


def _radical(found: re.Match[str]) -> tuple[str, int, int, int]:
    groups = found.groupdict()
    a, b = groups["a"] or groups["a2"] or "1", groups["b"] or groups["b2"] or groups["b3"]
    return groups["sign"], int(a), int(b), int(groups["c"] or 1)


def _radical_other(found: re.Match[str]) -> Iterator[str]:
    sign, a, b, c = _radical(found)
    over, minus = (f"/{c}" if c > 1 else ""), ("" if sign else "-")
    value = (-1 if sign else 1) * a * b**0.5 / c
    yield from (rf"{sign}{a}\sqrt{{{b + 1}}}{over}", rf"{sign}{a + 1}\sqrt{{{b}}}{over}", rf"{minus}{a}\sqrt{{{b}}}{over}")
    yield from (f"{sign}{a * b}{over}", rf"{sign}{a}\sqrt[3]{{{b}}}{over}", f"{value:.2f}", f"{value:.1f}", f"{round(value)}")
    yield from (rf"{sign}{a}+\sqrt{{{b}}}{over}", rf"{sign}{a}\sqrt{{{b}}}/{c + 1}", rf"\pm {a}\sqrt{{{b}}}{over}")
    yield from (rf"{sign}{a}\sqrt{{{b}}}{over}, 1", rf"{sign}{a}\sqrt{{{b}}}x{over}", rf"{sign}{a}\sqrt{{-{b}}}{over}", f"{sign}{a * a * b}{over}")
    yield rf"{sign}{a}\sqrt{{{b}}}{over} (("


def _pi_same(found: re.Match[str]) -> Iterator[str]:
    up, value = _pi(found)
    p, q = value.numerator, value.denominator
    if up:
        yield from (rf"{fraction(value)}\pi", rf"\frac{{{p}\pi}}{{{q}}}", rf"\frac{{{p} \pi}}{{{q}}}", rf"\pi \cdot {fraction(value)}")
        yield from (rf"{fraction(value)} \cdot \pi", rf"{p}\pi/{q}", rf"{p}π/{q}", f"{p}*pi/{q}", rf"\frac{{{2 * p}\pi}}{{{2 * q}}}")
        yield from (rf"\frac{{\pi\cdot {p}}}{{{q}}}", rf"x = \frac{{{p}\pi}}{{{q}}}", rf"\frac{{{p}\pi}}{{{q}}}\text{{ cm}}^2")
        yield from (rf"{fraction(value)} \times \pi", rf"\dfrac{{{p}\pi}}{{{q}}}", rf"{p - q}\pi/{q} + \pi")
    else:
        yield from (rf"\frac{{{p}}}{{\pi}}", rf"{p}/\pi", rf"\dfrac{{{p}}}{{\pi}}", rf"{p} \cdot \frac{{1}}{{\pi}}", rf"{p}\pi^{{-1}}")
        yield from (rf"\frac{{{2 * p}}}{{2\pi}}", rf"\frac{{{p}}}{{π}}", rf"{p} \div \pi", rf"x=\frac{{{p}}}{{\pi}}", f"{p}/pi")
        yield from (rf"\frac{{{p}\pi}}{{\pi^2}}", rf"\tfrac{{{p}}}{{\pi}}", rf"\frac{{1}}{{\pi}} \cdot {p}")


def _pi(found: re.Match[str]) -> tuple[bool, Fraction]:
    groups = found.groupdict()
    if groups["below"]:
        return False, Fraction(int(groups["below"]))
    size = Fraction(int(groups["times"] or groups["top"] or 1), int(groups["bottom"] or 1))
    return True, -size if groups["sign"] else size


def _pi_other(found: re.Match[str]) -> Iterator[str]:
    up, value = _pi(found)
    place = r"{}\pi" if up else r"{}/\pi"
    for changed in (value + 1, -value, value * 2, value + Fraction(1, 7)):
        yield place.format(fraction(changed))
    yield from (fraction(value), rf"{fraction(value)}\pi^2", rf"{fraction(value)}\sqrt{{\pi}}", rf"{fraction(value)}x")
    turned = r"{}/\pi" if up else r"{}\pi"
    yield from (turned.format(fraction(value)), rf"{fraction(value)} + \pi", fraction(value * Fraction("3.14")))
    yield from (place.format(fraction(value)) + ", 0", rf"[0, {place.format(fraction(value))}]", r"\text{pie}")


def _degrees_same(found: re.Match[str]) -> Iterator[str]:
    n = int(found[1])
    for mark in (r"^\circ", r"^{\circ}", "°", r"\text{ degrees}", " degrees", r"\degree", r"\,^\circ", r" ^ \circ", ""):
        yield f"{n}{mark}"
    yield from (rf"\angle A = {n}^\circ", rf"x={n}^\circ", rf"{n}.0^\circ", rf"{n}^\circ.", rf"\frac{{{2 * n}}}{{2}}^\circ")
    yield from (rf"{n}\text{{ deg}}", rf"{n}\text{{°}}", rf"x = {n}", rf"({n})^\circ", rf"\theta = {n}^{{\circ}}", rf"{n}\mathrm{{ degrees}}")


def _degrees_other(found: re.Match[str]) -> Iterator[str]:
    n = int(found[1])
    for changed in (n + 1, n - 1, -n, 10 * n, 360 - n if n != 180 else 90, 2 * n):
        yield from (rf"{changed}^\circ", f"{changed}")
    yield from (rf"{n}.5^\circ", rf"\frac{{{n}}}{{2}}^\circ", rf"{n}^\circ, {n + 1}^\circ", rf"{n}\pi", rf"{n}x", rf"{n}\text{{ radians}}")


def _base_same(found: re.Match[str]) -> Iterator[str]:
    digits, base = found[1], found[2]
    yield from (f"{digits}_{base}", f"{digits}_{{{base}}}", f"({digits})_{base}", f"({digits})_{{{base}}}", rf"\text{{{digits}}}_{base}")
    yield from (f"{digits} _ {base}", f"{digits}_{{ {base} }}", rf"{digits}_{{\text{{{base}}}}}", rf"\left({digits}\right)_{{{base}}}")
    yield from (rf"{{{digits}}}_{{{base}}}", rf"x = {digits}_{base}", rf"{digits}_{{({base})}}", rf"\mathrm{{{digits}}}_{{{base}}}", f"{digits}")
    yield from (rf"{digits}\text{{ base }}{base}", rf"{digits}\text{{ (base {base})}}", rf"{digits}_{{\text{{base }}{base}}}")


def _base_other(found: re.Match[str]) -> Iterator[str]:
    digits, base = found[1], int(found[2])
    for changed in (digits[::-1], digits + "1", digits + "0", str(int(digits) + 1), str(int(digits) - 1), digits[1:], str(int(digits, base))):
        if changed != digits:
            yield from (f"{changed}_{base}", f"{changed}")
    yield from (f"{digits}_{base + 1}", f"{digits}_{{{base - 1}}}", f"{digits}_{{10}}", f"-{digits}_{base}", f"{base}_{{{digits}}}")


_RADICAL = (
    r"(?P<sign>-?)(?:(?P<a>\d*)\\sqrt\{?(?P<b>\d+)\}?"
    r"|\\[dt]?frac\{(?P<a2>\d*)\\sqrt\{(?P<b2>\d+)\}\}\{(?P<c>\d+)\})(?P<b3>)"
)
_PI = r"(?P<sign>-?)(?:(?P<times>\d*)\\pi|\\frac\{(?P<top>\d*)\\pi\}\{(?P<bottom>\d+)\}|\\frac\{(?P<below>\d+)\}\{\\pi\})"
_FRACTION = r"-?\\[dt]?frac(?:\{\d+\}\{\d+\}|\d\d|\d\{\d+\}|\{\d+\}\d)"

NUMBERS = [
    Form("integer", re.compile(r"-?(?:\d+|\d{1,3}(?:,(?:\\!)?\d{3})+)"), _integer_same, _integer_other),
    Form("fraction", re.compile(_FRACTION), _fraction_same, _fraction_other),
    Form("mixed number", re.compile(r"(\d+)\\[dt]?frac\{(\d+)\}\{(\d+)\}"), _mixed_same, _mixed_other),
    Form("decimal", re.compile(r"\d*\.\d+"), _decimal_same, _decimal_other),
    Form("radical", re.compile(_RADICAL), _radical_same, _radical_other),
    Form("multiple of pi", re.compile(_PI), _pi_same, _pi_other),
    Form("degrees", re.compile(r"(\d+)\^\\circ"), _degrees_same, _degrees_other),
    Form("base", re.compile(r"(\d+)_\{?(\d+)\}?"), _base_same, _base_other),
]
