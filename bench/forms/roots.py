r"""Rewritings and near misses of numbers with a root, pi, i or a sign for plus or minus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from bench.forms.form import Form, fraction


def _radical_same(match: re.Match[str]) -> Iterator[str]:
    sign, a, b, c = _radical(match)
    s, over = f"{sign}{a}\\sqrt{{{b}}}", f"/{c}" if c > 1 else ""
    yield from (
        rf"{sign}\frac{{{a}\sqrt{{{b}}}}}{{{c}}}",
        rf"{s}{over}",
        rf"({s}){over}",
        rf"{sign}{a}\cdot\sqrt{{{b}}}{over}",
    )
    yield from (rf"{sign}{a} \times \sqrt{{{b}}}{over}", rf"{sign}\sqrt{{{b}}} \cdot {a}{over}", rf"x = {s}{over}")
    yield from (
        rf"{sign}\sqrt{{{a * a * b}}}{over}",
        rf"{sign}\frac{{{a * b}}}{{{c}\sqrt{{{b}}}}}",
        rf"{sign}{a} \cdot {b}^{{1/2}}{over}",
    )
    yield from (
        rf"{sign}\frac{{{2 * a}\sqrt{{{b}}}}}{{{2 * c}}}",
        rf"{sign}{a}\sqrt[2]{{{b}}}{over}",
        rf"{sign}{a}√{b}{over}",
    )
    yield from (
        rf"{sign}{a}*sqrt({b}){over}",
        rf"{sign}\frac{{{a}}}{{{c}}}\sqrt{{{b}}}",
        rf"{s}{over}\text{{ cm}}",
        rf"{sign}{a}\sqrt {{{b}}}{over}",
    )
    yield from (
        rf"{sign}\dfrac{{{a} \sqrt{{{b}}}}}{{{c}}}",
        rf"{sign}\frac{{{a}\sqrt{{{4 * b}}}}}{{{2 * c}}}",
        rf"{sign}{a} \cdot {b}^{{\frac{{1}}{{2}}}}{over}",
    )
    if a == 1:
        yield f"{sign}\\sqrt{{{b}}}{over}"


def _radical(match: re.Match[str]) -> tuple[str, int, int, int]:
    groups = match.groupdict()
    a, b = groups["a"] or groups["a2"] or "1", groups["b"] or groups["b2"] or groups["b3"]
    return groups["sign"], int(a), int(b), int(groups["c"] or 1)


def _radical_other(match: re.Match[str]) -> Iterator[str]:
    sign, a, b, c = _radical(match)
    over, minus = (f"/{c}" if c > 1 else ""), ("" if sign else "-")
    value = (-1 if sign else 1) * a * b**0.5 / c
    yield from (
        rf"{sign}{a}\sqrt{{{b + 1}}}{over}",
        rf"{sign}{a + 1}\sqrt{{{b}}}{over}",
        rf"{minus}{a}\sqrt{{{b}}}{over}",
    )
    yield from (
        f"{sign}{a * b}{over}",
        rf"{sign}{a}\sqrt[3]{{{b}}}{over}",
        f"{value:.2f}",
        f"{value:.1f}",
        f"{round(value)}",
    )
    yield from (rf"{sign}{a}+\sqrt{{{b}}}{over}", rf"{sign}{a}\sqrt{{{b}}}/{c + 1}", rf"\pm {a}\sqrt{{{b}}}{over}")
    yield from (
        rf"{sign}{a}\sqrt{{{b}}}{over}, 1",
        rf"{sign}{a}\sqrt{{{b}}}x{over}",
        rf"{sign}{a}\sqrt{{-{b}}}{over}",
        f"{sign}{a * a * b}{over}",
    )
    yield rf"{sign}{a}\sqrt{{{b}}}{over} (("


def _pi_same(match: re.Match[str]) -> Iterator[str]:
    up, value = _pi(match)
    p, q = value.numerator, value.denominator
    if up:
        yield from (
            rf"{fraction(value)}\pi",
            rf"\frac{{{p}\pi}}{{{q}}}",
            rf"\frac{{{p} \pi}}{{{q}}}",
            rf"\pi \cdot {fraction(value)}",
        )
        yield from (
            rf"{fraction(value)} \cdot \pi",
            rf"{p}\pi/{q}",
            rf"{p}π/{q}",
            f"{p}*pi/{q}",
            rf"\frac{{{2 * p}\pi}}{{{2 * q}}}",
        )
        yield from (
            rf"\frac{{\pi\cdot {p}}}{{{q}}}",
            rf"x = \frac{{{p}\pi}}{{{q}}}",
            rf"\frac{{{p}\pi}}{{{q}}}\text{{ cm}}^2",
        )
        yield from (rf"{fraction(value)} \times \pi", rf"\dfrac{{{p}\pi}}{{{q}}}", rf"{p - q}\pi/{q} + \pi")
    else:
        yield from (
            rf"\frac{{{p}}}{{\pi}}",
            rf"{p}/\pi",
            rf"\dfrac{{{p}}}{{\pi}}",
            rf"{p} \cdot \frac{{1}}{{\pi}}",
            rf"{p}\pi^{{-1}}",
        )
        yield from (
            rf"\frac{{{2 * p}}}{{2\pi}}",
            rf"\frac{{{p}}}{{π}}",
            rf"{p} \div \pi",
            rf"x=\frac{{{p}}}{{\pi}}",
            f"{p}/pi",
        )
        yield from (rf"\frac{{{p}\pi}}{{\pi^2}}", rf"\tfrac{{{p}}}{{\pi}}", rf"\frac{{1}}{{\pi}} \cdot {p}")


def _pi(match: re.Match[str]) -> tuple[bool, Fraction]:
    groups = match.groupdict()
    if groups["below"]:
        return False, Fraction(int(groups["below"]))
    size = Fraction(int(groups["times"] or groups["top"] or 1), int(groups["bottom"] or 1))
    return True, -size if groups["sign"] else size


def _pi_other(match: re.Match[str]) -> Iterator[str]:
    up, value = _pi(match)
    place = r"{}\pi" if up else r"{}/\pi"
    for changed in (value + 1, -value, value * 2, value + Fraction(1, 7)):
        yield place.format(fraction(changed))
    yield from (fraction(value), rf"{fraction(value)}\pi^2", rf"{fraction(value)}\sqrt{{\pi}}", rf"{fraction(value)}x")
    turned = r"{}/\pi" if up else r"{}\pi"
    yield from (turned.format(fraction(value)), rf"{fraction(value)} + \pi", fraction(value * Fraction("3.14")))
    yield from (place.format(fraction(value)) + ", 0", rf"[0, {place.format(fraction(value))}]", r"\text{pie}")


def _sum_same(match: re.Match[str]) -> Iterator[str]:
    first, mark, second = match["first"], match["mark"], match["second"]
    back = "-" if mark == "-" else "+"
    turned = f"{'-' if mark == '-' else ''}{second}{'' if first.startswith('-') else '+'}{first}"
    whole = f"{first}{mark}{second}"
    yield from (
        whole,
        f"{first} {mark} {second}",
        turned,
        f"({first}){back}({second})",
        rf"\left({whole}\right)",
        f"x = {whole}",
    )
    yield from (
        rf"\frac{{2({whole})}}{{2}}",
        rf"{whole}+1-1",
        f"-(-({whole}))",
        rf"{first}{mark}{{{second}}}",
        rf"z={turned}",
    )
    yield from (
        rf"{first}\,{mark}\,{second}",
        rf"{first} {mark} 1 \cdot {second}",
        rf"\frac{{{whole}}}{{1}}",
        rf"2 \cdot \left({whole}\right) / 2",
    )
    yield from (
        f"{first}{mark}{second}+0",
        rf"{whole}\text{{ units}}",
        f"{first} - (-({second}))" if mark == "+" else f"{first} + (-{second})",
    )


def _sum_other(match: re.Match[str]) -> Iterator[str]:
    first, mark, second = match["first"], match["mark"], match["second"]
    turned = "-" if mark == "+" else "+"
    yield from (
        f"{first}{turned}{second}",
        f"-({first}{mark}{second})",
        first,
        second,
        f"{first}{mark}{second}+1",
        f"2({first}{mark}{second})",
    )
    yield from (
        f"{first},{second}",
        f"({first},{second})",
        rf"{first}\pm {second}",
        f"({first})({second})",
        f"{first}{mark}{second}-1",
    )
    yield from (
        f"{first}{mark}2{second}" if not second[0].isdigit() else f"{first}{mark}1{second}",
        rf"{first}{mark}{second}, 0",
    )
    letter = next((symbol for symbol in ("i", r"\pi", r"\sqrt") if symbol in first + second), "")
    yield (first + mark + second).replace(letter, {"i": "", r"\pi": "", r"\sqrt": ""}[letter])


def _plus_minus_same(match: re.Match[str]) -> Iterator[str]:
    a, b = match["a"], match["b"]
    up, down = f"{a}+{b}", f"{a}-{b}"
    yield from (
        rf"{a}\pm{b}",
        rf"{a} \pm {b}",
        f"{up},{down}",
        f"{down}, {up}",
        rf"\{{{up},{down}\}}",
        rf"\{{{down}, {up}\}}",
    )
    yield from (
        rf"x={a}\pm {b}",
        rf"x = {up}, {down}",
        rf"x={up} \text{{ or }} x={down}",
        rf"{up} \text{{ and }} {down}",
        rf"x={up}, x={down}",
    )
    yield from (
        rf"{a}±{b}",
        rf"x \in \{{{up}, {down}\}}",
        rf"\left\{{{up}, {down}\right\}}",
        rf"x={down} \text{{ or }} {up}",
        f"{up}; {down}",
    )


def _plus_minus_other(match: re.Match[str]) -> Iterator[str]:
    a, b = match["a"], match["b"]
    yield from (
        f"{a}+{b}",
        f"{a}-{b}",
        rf"-{a}\pm {b}",
        rf"{a}1\pm {b}",
        rf"{b} \pm {a}",
        f"[{a}-{b},{a}+{b}]",
        f"{a}+{b},{a}+{b}",
    )
    yield from (
        f"{a}+{b},{a}-{b},0",
        f"{a}, {b}",
        rf"{a} \pm 2{b}" if not b[0].isdigit() else rf"{a}\pm 1{b}",
        f"-{a}-{b},-{a}+{b}",
        rf"\pm {a}",
    )


_RADICAL = (
    r"(?P<sign>-?)(?:(?P<a>\d*)\\sqrt\{?(?P<b>\d+)\}?"
    r"|\\[dt]?frac\{(?P<a2>\d*)\\sqrt\{(?P<b2>\d+)\}\}\{(?P<c>\d+)\})(?P<b3>)"
)


_PI = (
    r"(?P<sign>-?)(?:(?P<times>\d*)\\pi|\\frac\{(?P<top>\d*)\\pi\}\{(?P<bottom>\d+)\}|\\frac\{(?P<below>\d+)\}\{\\pi\})"
)


_TERM = r"-?(?:\d+(?:\\sqrt\{?\d+\}?|\\pi|i)?|\\sqrt\{?\d+\}?)"


ROOTS = [
    Form("radical", re.compile(_RADICAL), _radical_same, _radical_other),
    Form("multiple of pi", re.compile(_PI), _pi_same, _pi_other),
    Form("sum of two", re.compile(rf"(?P<first>{_TERM})(?P<mark>[-+])(?P<second>{_TERM})"), _sum_same, _sum_other),
    Form("plus or minus", re.compile(r"(?P<a>[^,{]+)\\pm(?P<b>[^,]+)"), _plus_minus_same, _plus_minus_other),
]
