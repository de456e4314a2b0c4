r"""Rewritings and near misses of lists of solutions, equations, and expressions (parsed by sympy's own parser)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sympy
from sympy.parsing.sympy_parser import (
    convert_xor,
    implicit_multiplication_application,
    parse_expr,
    standard_transformations,
)

from bench.forms.form import Form, parts_of

READ = (*standard_transformations, implicit_multiplication_application, convert_xor)


def expression(text: str) -> sympy.Expr:
    """Parse a polynomial-like answer with sympy's own parser, which is not the measured one."""
    plain = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    plain = re.sub(r"\\cot ?(\w)", r"cot(\1)", plain)
    return parse_expr(plain, transformations=READ)


def _members(match: re.Match[str]) -> list[str]:
    members = []
    for part in parts_of(re.sub(r"^\\\{|\\\}$", "", match[0])):
        a, both, b = part.partition(r"\pm")
        members += [f"{a}+{b}", f"{a}-{b}"] if both else [part]
    return members


def _list_same(match: re.Match[str]) -> Iterator[str]:
    parts = _members(match)
    for order in (parts, parts[::-1], parts[1:] + parts[:1]):
        yield from (
            ",".join(order),
            ", ".join(order),
            rf"\{{{', '.join(order)}\}}",
            rf"\left\{{{','.join(order)}\right\}}",
            "x=" + ",".join(order),
        )
        yield from (
            r" \text{ and } ".join([", ".join(order[:-1]), order[-1]]),
            ", ".join(f"x={part}" for part in order),
        )
        yield from (
            r" \text{ or } ".join(f"x={part}" for part in order)
            if len(order) == 2
            else rf"x \in \{{{','.join(order)}\}}",
            "; ".join(order),
        )


def _list_other(match: re.Match[str]) -> Iterator[str]:
    parts = _members(match)
    yield from (
        ", ".join(parts[:-1]),
        ", ".join(parts[1:]),
        ", ".join([*parts, "100"]),
        parts[0],
        parts[-1],
        " + ".join(parts),
        "100",
    )
    for at in range(len(parts)):
        for changed in (f"{parts[at]}+100", f"-100{parts[at]}", f"{parts[at]}+i"):
            yield ", ".join([*parts[:at], changed, *parts[at + 1 :]])
    yield from (
        ", ".join([*parts[:-1], parts[0]]),
        rf"\{{{parts[0]}\}}",
        "{}{}".format(parts[0], parts[-1].lstrip("-")),
    )


def _equation_same(match: re.Match[str]) -> Iterator[str]:
    left, right = match["left"], match["right"]
    yield from (
        f"{left}={right}",
        f"{right}={left}",
        f"{left}-({right})=0",
        f"({right})-({left})=0",
        f"0={left}-({right})",
    )
    yield from (
        f"{left}+1={right}+1",
        f"-({left})=-({right})",
        rf"\left({left}\right) = {right}",
        f"{left}+x={right}+x",
    )
    yield from (rf"{left}\,=\,{right}", f"{left} - 7 = {right} - 7", f"{left} = {right} + 0")
    if re.search("[a-z]", right) or right == "0":
        yield from (f"2({left})=2({right})", f"3({left})-3({right})=0", rf"\frac{{{left}}}{{2}}=\frac{{{right}}}{{2}}")
    if len(left) == 1:
        yield from (rf"{left} = \left({right}\right)", rf"{left} = 1 \cdot ({right})")
        if re.fullmatch(r"-?\d+", right):
            yield right


def _equation_other(match: re.Match[str]) -> Iterator[str]:
    left, right = match["left"], match["right"]
    yield from (
        f"{left}={right}+1",
        f"{left}=-({right})-1",
        f"{left}<{right}",
        rf"{left}\ge {right}",
        rf"{left} \ne {right}",
        f"{left}={right}+2x",
    )
    yield from (
        f"2({left})={right}-3",
        f"{left}+1={right}",
        f"({left})^2=({right})^2+1",
        "x=0",
        "0=0",
        f"{left}={right}, x=1" if right != "1" else "x=7",
    )
    if len(left) == 1:
        yield from (left, f"{left}={right} (", f"{left}=2({right})")


def _expression_same(match: re.Match[str]) -> Iterator[str]:
    text = match[0]
    value = expression(text)
    for changed in (sympy.expand(value), sympy.factor(value), sympy.together(value), 3 * value):
        written = sympy.latex(changed)
        yield written if changed != 3 * value else rf"\frac{{{written}}}{{3}}"
    yield sympy.latex(sympy.expand(value), order="rev-lex")
    yield sympy.latex(sympy.expand(value), mul_symbol="dot")
    yield from (
        f"({text})",
        rf"\left({text}\right)",
        f"y = {text}",
        f"{text}+0",
        f"{text} + 1 - 1",
        f"-(-({text}))",
        f"1({text})",
    )
    yield from (
        rf"\frac{{2({text})}}{{2}}",
        re.sub(r"\^(\d)", r"^{\1}", text),
        re.sub(r"([-+])", r" \1 ", text),
        f"f(x)={text}",
    )
    yield from (
        re.sub(r"(\d)([a-zA-Z])", r"\1*\2", text) if "\\" not in text else rf"\displaystyle {text}",
        rf"\dfrac{{5({text})}}{{5}}",
    )


def _expression_other(match: re.Match[str]) -> Iterator[str]:
    text = match[0]
    value = expression(text)
    letters = sorted(value.free_symbols, key=str)
    changes = [
        value + 1,
        -value,
        2 * value,
        value + letters[0],
        value - 1,
        value**2,
        sympy.diff(value, letters[0]) + 11,
    ]
    changes += [
        value.subs(letters[0], sympy.Symbol("w")),
        value.subs(letters[0], letters[0] + 1),
        value.subs(letters[0], 3),
    ]
    changes += [value.subs(letters[0], -letters[0])] if value.subs(letters[0], -letters[0]) != value else []
    terms = sympy.Add.make_args(sympy.expand(value))
    changes += (
        [value - term for term in terms] + [value - 2 * term for term in terms] + [value + term for term in terms]
    )
    yield from (sympy.latex(sympy.expand(changed)) for changed in changes)
    yield from (f"{text}, 1", f"{text} ((", "0", r"\text{none}", f"{text}>0")


ALGEBRA = [
    Form("list", re.compile(r"\\\{.+\\\}|[^,(\[]+(?:,[^,)\]]+)+"), _list_same, _list_other),
    Form("equation", re.compile(r"(?P<left>[^=]+)=(?P<right>[^=]+)"), _equation_same, _equation_other),
    Form("expression", re.compile(r".*[a-zA-Z].*"), _expression_same, _expression_other),
]
