r"""Rewritings and near misses of plain numbers: integers, fractions, decimals, degrees, numerals of a base."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from bench.forms.form import Form, decimal, fraction


def _integer_same(match: re.Match[str]) -> Iterator[str]:
    n = int(re.sub(r"[,\\!{}]", "", match[0]))
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


def _integer_other(match: re.Match[str]) -> Iterator[str]:
    n = int(re.sub(r"[,\\!{}]", "", match[0]))
    size = abs(n)
    yield from (f"{n + 1}", f"{n - 1}", f"{n}.5", f"{n}.001", f"{n},{n + 1}", f"({n},{n})", rf"\{{{n}, {n + 1}\}}")
    yield from (f"{n}+x", f"x={n + 1}", f"x>{n}", f"[{n},{n + 1}]", r"\text{none}", "x", f"{n}5")
    yield from (rf"{n} \text{{ or }} {n + 1}", rf"\text{{between }} {n} \text{{ and }} {n + 2}", rf"x \ne {n}")
    yield from (rf"\frac{{{2 * n + 1}}}{{2}}", f"{n}/0", f"1{n}", rf"\text{{not }} {n}", f"{n} ((( {n}")
    if n != 0:
        yield from (
            f"{-n}",
            f"{10 * n}",
            rf"\frac{{{n}}}{{2}}",
            rf"\pm {size}",
            f"{n}i",
            rf"{n}\pi",
            f"{n}+i",
            f"{n}x",
            f"{n}{size}",
        )
    if size > 1:
        yield from (f"({n})^2", rf"\sqrt{{{size}}}", rf"\frac{{1}}{{{n}}}")
    if n > 9 and int(str(n)[::-1]) != n:
        yield str(n)[::-1]


def _fraction_value(match: re.Match[str]) -> Fraction:
    text = re.sub(r"\\[dt]?frac", "", match[0].replace("{", "").replace("}", " "))
    sign = -1 if text.startswith("-") else 1
    parts = text.lstrip("-").split()
    top, bottom = parts if len(parts) == 2 else (parts[0][:1], parts[0][1:])
    return sign * Fraction(int(top), int(bottom))


def _fraction_same(match: re.Match[str]) -> Iterator[str]:
    value = _fraction_value(match)
    p, q = value.numerator, value.denominator
    yield from (fraction(value), fraction(value, command=r"\dfrac"), fraction(value, command=r"\tfrac"), f"{p}/{q}")
    yield from (fraction(value, 2), fraction(value, 7), f"{3 * p}/{3 * q}", rf"\frac{{{-p}}}{{{-q}}}", f"({p})/({q})")
    yield from (
        rf"{p} \div {q}",
        rf"{p}\cdot\frac{{1}}{{{q}}}",
        rf"x = {fraction(value)}",
        rf"\left({fraction(value)}\right)",
    )
    yield from (
        rf"\frac{{{p}}}{{{q}}}",
        rf"{{{p} \over {q}}}",
        rf"{p} \cdot {q}^{{-1}}",
        rf"\frac{{{p - q}}}{{{q}}} + 1",
    )
    yield from (rf"\cfrac{{{p}}}{{{q}}}", rf"{fraction(value)}\text{{ cm}}", f"{p} / {q}")
    yield rf"P = \dfrac{{{p}}}{{{q}}}"
    if abs(p) < 10 and q < 10 and p > 0:
        yield from (rf"\frac{p}{q}", rf"\frac {p}{q}", rf"\frac{{{p}}}{q}", rf"\frac{p}{{{q}}}")
    if value > 1:
        yield from (rf"{p // q}\frac{{{p % q}}}{{{q}}}", rf"{p // q} + \frac{{{p % q}}}{{{q}}}")
    finite = decimal(value)
    if finite is not None:
        yield from (finite, finite + "0", finite.replace("0.", ".", 1) if abs(value) < 1 else f"x={finite}")


def _fraction_other(match: re.Match[str]) -> Iterator[str]:
    value = _fraction_value(match)
    p, q = value.numerator, value.denominator
    yield from (f"{p + 1}/{q}", f"{p}/{q + 1}", fraction(-value), rf"\frac{{{p - 1}}}{{{q}}}", rf"\frac{{{q}}}{{{p}}}")
    yield from (str(p), str(q), f"{float(value):.2f}1", rf"\frac{{{p}}}{{{q}}}x", rf"\frac{{{p * p}}}{{{q * q}}}")
    yield from (f"({p},{q})", f"{p},{q}", rf"\sqrt{{\frac{{{abs(p)}}}{{{q}}}}}", rf"\frac{{{p}}}{{{q}}}, 1", f"{p}-{q}")
    yield from (rf"1 - \frac{{{p}}}{{{q}}}" if 2 * p != q else "1", rf"\frac{{{p}}}{{{q}}} + \frac{{1}}{{{q}}}")
    yield from (rf"\text{{not }}\frac{{{p}}}{{{q}}}", rf"\frac{{{p}}}{{{q}}} ((", rf"\pm\frac{{{abs(p)}}}{{{q}}}")
    if decimal(value) is None:
        yield from (f"{float(value):.3f}", f"{float(value):.2f}", f"{float(value):.1f}")


def _mixed(match: re.Match[str]) -> tuple[int, Fraction]:
    return int(match[1]), Fraction(int(match[2]), int(match[3]))


def _mixed_same(match: re.Match[str]) -> Iterator[str]:
    whole, part = _mixed(match)
    value = whole + part
    small = f"{part.numerator}}}{{{part.denominator}"
    yield from (rf"{whole}\frac{{{small}}}", rf"{whole} \frac{{{small}}}", rf"{whole}\dfrac{{{small}}}")
    yield from (rf"{whole}\tfrac{{{small}}}", rf"{whole}+\frac{{{small}}}", rf"{whole}\,\frac{{{small}}}")
    yield from (rf"{whole}\ \frac{{{small}}}", rf"x = {whole}\frac{{{small}}}", rf"{whole}\frac{{{small}}}\text{{ cm}}")
    yield from (
        fraction(value),
        fraction(value, 3),
        f"{value.numerator}/{value.denominator}",
        rf"-\left(-{fraction(value)}\right)",
    )
    yield from (rf"{whole + 1} - {fraction(1 - part)}", f"{whole} + {part.numerator}/{part.denominator}")
    finite = decimal(value)
    if finite is not None:
        yield from (finite, finite + "0")


def _mixed_other(match: re.Match[str]) -> Iterator[str]:
    whole, part = _mixed(match)
    yield from (fraction(whole * part), str(whole), fraction(part), fraction(whole + 1 + part), fraction(whole - part))
    yield from (
        rf"{whole}, {fraction(part)}",
        rf"{whole + 1}{fraction(part)}",
        fraction(-whole - part),
        f"({whole},{part})",
    )
    yield from (rf"{whole} \cdot {fraction(part)}", rf"\frac{{{whole + part.numerator}}}{{{part.denominator}}}")


def _decimal_same(match: re.Match[str]) -> Iterator[str]:
    text = "0" + match[0] if match[0].startswith(".") else match[0]
    value = Fraction(text)
    power = len(text.partition(".")[2])
    digits = value * 10**power
    yield from (text, text + "0", text + "000", f"+{text}", f"0{text}", f"x={text}", rf"\text{{{text}}}", f"({text})")
    yield from (fraction(value), f"{value.numerator}/{value.denominator}", rf"\frac{{{digits}}}{{{10**power}}}")
    yield from (rf"{digits} \times 10^{{-{power}}}", rf"{digits}\cdot 10^{{-{power}}}", rf"{text}\text{{ units}}")
    yield from (
        rf"\mathbf{{{text}}}",
        rf"\frac{{{text}}}{{1}}",
        rf"{decimal(value * 100)}\%",
        rf"{2 * digits} \cdot 10^{{-{power}}} / 2",
    )
    if value < 1:
        yield text.removeprefix("0")
    if power != 3:
        yield text.replace(".", "{,}" if power == 1 else ",")  # `3,5` is a list


def _decimal_other(match: re.Match[str]) -> Iterator[str]:
    text = "0" + match[0] if match[0].startswith(".") else match[0]
    value = Fraction(text)
    last = Fraction(1, 10 ** len(text.partition(".")[2]))
    for changed in (value + last, value - last, -value, value * 10, value / 10, value + 1, value + last / 10):
        yield str(decimal(changed))
    yield from (
        text[:-1] or "0",
        str(int(value)),
        f"{text}, 1",
        f"{text}x",
        fraction(1 / value),
    )
    if len(text.partition(".")[2]) == 3:
        yield text.replace(".", ",")  # a mark of thousands
    yield from (rf"{text}^2", rf"{text}\pi", fraction(value + last), rf"\pm {text}")


def _degrees_same(match: re.Match[str]) -> Iterator[str]:
    n = int(match[1])
    for mark in (r"^\circ", r"^{\circ}", "°", r"\text{ degrees}", " degrees", r"\degree", r"\,^\circ", r" ^ \circ", ""):
        yield f"{n}{mark}"
    yield from (
        rf"\angle A = {n}^\circ",
        rf"x={n}^\circ",
        rf"{n}.0^\circ",
        rf"{n}^\circ.",
        rf"\frac{{{2 * n}}}{{2}}^\circ",
    )
    yield from (
        rf"{n}\text{{ deg}}",
        rf"{n}\text{{°}}",
        rf"x = {n}",
        rf"({n})^\circ",
        rf"\theta = {n}^{{\circ}}",
        rf"{n}\mathrm{{ degrees}}",
    )


def _degrees_other(match: re.Match[str]) -> Iterator[str]:
    n = int(match[1])
    for changed in (n + 1, n - 1, -n, 10 * n, 360 - n if n != 180 else 90, 2 * n):
        yield from (rf"{changed}^\circ", f"{changed}")
    yield from (
        rf"{n}.5^\circ",
        rf"\frac{{{n}}}{{2}}^\circ",
        rf"{n}^\circ, {n + 1}^\circ",
        rf"{n}\pi",
        rf"{n}x",
        rf"{n}\text{{ radians}}",
    )


def _base_same(match: re.Match[str]) -> Iterator[str]:
    digits, base = match[1], match[2]
    yield from (
        f"{digits}_{base}",
        f"{digits}_{{{base}}}",
        f"({digits})_{base}",
        f"({digits})_{{{base}}}",
        rf"\text{{{digits}}}_{base}",
    )
    yield from (
        f"{digits} _ {base}",
        f"{digits}_{{ {base} }}",
        rf"{digits}_{{\text{{{base}}}}}",
        rf"\left({digits}\right)_{{{base}}}",
    )
    yield from (
        rf"{{{digits}}}_{{{base}}}",
        rf"x = {digits}_{base}",
        rf"{digits}_{{({base})}}",
        rf"\mathrm{{{digits}}}_{{{base}}}",
        f"{digits}",
    )
    yield from (
        rf"{digits}\text{{ base }}{base}",
        rf"{digits}\text{{ (base {base})}}",
        rf"{digits}_{{\text{{base }}{base}}}",
    )


def _base_other(match: re.Match[str]) -> Iterator[str]:
    digits, base = match[1], int(match[2])
    for changed in (
        digits[::-1],
        digits + "1",
        digits + "0",
        str(int(digits) + 1),
        str(int(digits) - 1),
        digits[1:],
        str(int(digits, base)),
    ):
        if changed != digits:
            yield from (f"{changed}_{base}", f"{changed}")
    yield from (
        f"{digits}_{base + 1}",
        f"{digits}_{{{base - 1}}}",
        f"{digits}_{{10}}",
        f"-{digits}_{base}",
        f"{base}_{{{digits}}}",
    )


_FRACTION = r"-?\\[dt]?frac(?:\{\d+\}\{\d+\}|\d\d|\d\{\d+\}|\{\d+\}\d)"


NUMBERS = [
    Form("integer", re.compile(r"-?(?:\d+|\d{1,3}(?:,(?:\\!)?\d{3})+)"), _integer_same, _integer_other),
    Form("fraction", re.compile(_FRACTION), _fraction_same, _fraction_other),
    Form("mixed number", re.compile(r"(\d+)\\[dt]?frac\{(\d+)\}\{(\d+)\}"), _mixed_same, _mixed_other),
    Form("decimal", re.compile(r"\d*\.\d+"), _decimal_same, _decimal_other),
    Form("degrees", re.compile(r"(\d+)\^\\circ"), _degrees_same, _degrees_other),
    Form("base", re.compile(r"(\d+)_\{?(\d+)\}?"), _base_same, _base_other),
]
