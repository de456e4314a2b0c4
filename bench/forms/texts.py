r"""Rewritings and near misses of texts: names, choices, and amounts with a unit or a currency."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.forms.form import Form


def _money_same(match: re.Match[str]) -> Iterator[str]:
    digits = re.sub(r"[,\\!]", "", match["amount"])
    whole, _, cents = digits.partition(".")
    grouped = f"{int(whole):,}" + (f".{cents}" if cents else "")
    for text in dict.fromkeys((digits, grouped, grouped.replace(",", "{,}"), grouped.replace(",", r",\!"))):
        yield from (text, rf"\${text}", f"${text}", rf"{text}\text{{ dollars}}", rf"\text{{\${text}}}", rf"\$ {text}")
    yield from (
        rf"{digits}\$",
        f"{digits} dollars",
        rf"x = \${digits}",
        rf"\${digits}0" if cents else rf"\${digits}.00",
        rf"\text{{USD }}{digits}",
        f"{digits} USD",
    )


def _money_other(match: re.Match[str]) -> Iterator[str]:
    digits = re.sub(r"[,\\!]", "", match["amount"])
    yield from (
        f"{digits}1",
        f"1{digits}",
        rf"\$1{digits}",
        f"-{digits}",
        rf"\$-{digits}",
        digits[:-1] + ("1" if digits[-1] != "1" else "2"),
        digits[1:],
    )
    yield from (
        rf"{digits}\text{{ cents}}",
        rf"{digits}, 1",
        rf"{digits}\text{{ or }}1",
        f"{digits}x",
        "0",
        rf"\frac{{{digits}}}{{2}}",
        digits.replace(".", "") + "00",
    )


def _unit_same(match: re.Match[str]) -> Iterator[str]:
    value, unit, power = match["value"], match["unit"].strip(), match["power"] or ""
    exponent = power.strip("^{}")
    marks = [power] if not power else [power, f"^{{{exponent}}}"]
    for mark in marks:
        yield from (
            rf"{value}\text{{ {unit}}}{mark}",
            rf"{value} \text{{{unit}}}{mark}",
            rf"{value}\,\text{{{unit}}}{mark}",
            rf"{value}\mathrm{{ {unit}}}{mark}",
        )
        yield from (
            rf"{value}~\mathrm{{{unit}}}{mark}",
            rf"{value}\mbox{{ {unit}}}{mark}",
            f"{value} {unit}{mark}",
            rf"{value}\textrm{{ {unit}}}{mark}",
        )
    yield from (
        value,
        f"x={value}",
        rf"A = {value}\text{{ {unit}}}{power}",
        rf"{value}\text{{ {unit}}}{power}.",
        rf"\left({value}\right)\text{{ {unit}}}{power}",
    )
    if exponent == "2":
        yield from (
            rf"{value}\text{{ square {unit}}}",
            rf"{value}\text{{ sq. {unit}}}",
            rf"{value}\text{{ {unit}$^2$}}",
            rf"{value}\text{{ {unit}}}²",
        )


def _unit_other(match: re.Match[str]) -> Iterator[str]:
    value, unit, power = match["value"], match["unit"].strip(), match["power"] or ""
    for changed in (f"{value}+1", f"{value}-1", f"-{value}", f"10({value})", f"2\\cdot {value}"):
        yield from (changed, rf"{changed}\text{{ {unit}}}{power}")
    for wrong in ("kg", "hours", "miles", r"dollars"):
        if wrong != unit:
            yield rf"{value}\text{{ {wrong}}}{power}"
    yield from (rf"{value}\text{{ {unit}}}^{{3}}", rf"{value}, 1\text{{ {unit}}}{power}", rf"\text{{{unit}}}{power}")


def _choice_same(match: re.Match[str]) -> Iterator[str]:
    letter = match["letter"]
    for command in ("text", "textbf", "mathrm", "mathbf", "textrm", "mbox"):
        yield from (rf"\{command}{{({letter})}}", rf"\{command}{{{letter}}}")
    yield from (
        f"({letter})",
        letter,
        rf"(\text{{{letter}}})",
        f"{letter}.",
        f"({letter}).",
        rf"\left({letter}\right)",
        f"{letter})",
        letter.lower(),
        rf"\text{{Choice {letter}}}",
    )
    yield from (
        rf"\text{{({letter.lower()})}}",
        rf"\text{{ ({letter}) }}",
        f"**{letter}**",
        rf"\text{{Option }} {letter}",
        rf"\textbf{{({letter}) }}",
    )


def _choice_other(match: re.Match[str]) -> Iterator[str]:
    for letter in "ABCDEFG":
        if letter != match["letter"]:
            yield from (letter, rf"\text{{({letter})}}", rf"\text{{{match['letter']}, {letter}}}")
    yield from (
        rf"\text{{not {match['letter']}}}",
        "5",
        f"{match['letter']}{match['letter']}",
        rf"{match['letter']} + 1",
        r"\text{A, B, C, D, E}",
        rf"2{match['letter']}",
    )


def _word_same(match: re.Match[str]) -> Iterator[str]:
    word = match["word"]
    for command in ("text", "textbf", "mathrm", "textrm", "mbox", "textit", "mathbf"):
        yield from (rf"\{command}{{{word}}}", rf"\{command}{{ {word} }}")
    yield from (
        word,
        word.lower(),
        word.upper(),
        word.capitalize(),
        f"{word}.",
        rf"\text{{{word}.}}",
        f'"{word}"',
        rf"\text{{{word.lower()}}}",
        f"**{word}**",
        rf"\text{{{word.upper()}}}",
    )


def _word_other(match: re.Match[str]) -> Iterator[str]:
    word = match["word"]
    others = [
        word[::-1],
        word[:-1],
        word + "s",
        "un" + word,
        "".join(sorted(word)),
        word[1:],
        f"not {word}",
        f"{word} and Bob",
        f"{word} or Bob",
        "odd",
        "Zed",
    ]
    for other in others:
        if other.lower() != word.lower():
            yield from (rf"\text{{{other}}}", other)
    yield from (
        "1",
        "x",
        rf"\text{{{word}}}, \text{{Bob}}",
        rf"\text{{{word}}} + 1",
        rf"2\text{{{word}}}",
        rf"\text{{neither {word} nor Bob}}",
    )


_TEXT_COMMAND = r"\\(?:text|mbox)\{"


TEXTS = [
    Form("choice", re.compile(_TEXT_COMMAND + r"\((?P<letter>[A-Z])\)\}"), _choice_same, _choice_other),
    Form("word", re.compile(_TEXT_COMMAND + r"(?P<word>[A-Za-z ]+)\}"), _word_same, _word_other),
    Form(
        "units",
        re.compile(r"(?P<value>.*\d\}?)" + _TEXT_COMMAND + r"(?P<unit>[A-Za-z ]+)\}(?P<power>\^\d)?"),
        _unit_same,
        _unit_other,
    ),
    Form("currency", re.compile(r"\\\$(?P<amount>[\d,\\!.]+)"), _money_same, _money_other),
]
