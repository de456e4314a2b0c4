r"""Rewritings and near misses of tuples, intervals, their unions, and matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.forms.form import Form, parts_of


def _tuple_same(match: re.Match[str]) -> Iterator[str]:
    parts = parts_of(match["inside"])
    doubled = [rf"\frac{{2({part})}}{{2}}" if "infty" not in part else part for part in parts]
    letters = ",".join("xyzwuvst"[: len(parts)])
    for comma in (",", ", ", r",\,", r",\ ", " , ", r",~", r",\;"):
        yield f"({comma.join(parts)})"
    inside = ", ".join(parts)
    yield from (
        rf"\left({inside}\right)",
        rf"\left( {inside} \right)",
        rf"\big({inside}\big)",
        rf"\bigl({inside}\bigr)",
        f"({letters})=({inside})",
    )
    yield from (
        f"({','.join(doubled)})",
        f"({doubled[0]},{','.join(parts[1:])})",
        rf"\left(\displaystyle {inside}\right)",
        f"P = ({inside})",
    )
    yield from (
        "(" + inside.replace(r"\frac", r"\dfrac") + ")",
        "(" + inside.replace("-", "\N{MINUS SIGN}") + ")",
        rf"\Bigl({inside}\Bigr)",
    )


def _tuple_other(match: re.Match[str]) -> Iterator[str]:
    parts = parts_of(match["inside"])
    if parts != parts[::-1]:
        yield f"({','.join(reversed(parts))})"
    for at in range(len(parts)):
        for changed in (f"{parts[at]}+1", f"{parts[at]}-1", f"2({parts[at]})+5"):
            yield f"({','.join([*parts[:at], changed, *parts[at + 1 :]])})"
    inside = ",".join(parts)
    yield from (
        f"({inside},0)",
        f"({','.join(parts[:-1])})",
        f"({inside}]",
        f"[{inside})",
        f"({inside}),(0,0)",
        parts[0],
        parts[-1],
    )
    yield from (f"({','.join(f'-({part})-2' for part in parts)})", f"({inside}", r"\text{none}")


def _interval_same(match: re.Match[str]) -> Iterator[str]:
    open_, a, b, close = match["open"], match["a"], match["b"], match["close"]
    lower, upper = ("<" if open_ == "(" else r"\le"), ("<" if close == ")" else r"\le")
    greater = {"<": ">", r"\le": r"\ge"}
    for text in (f"{a},{b}", f"{a}, {b}", f" {a} , {b} ", rf"{a},\,{b}"):
        yield f"{open_}{text}{close}"
    yield from (
        rf"\left{open_}{a},{b}\right{close}",
        rf"x \in {open_}{a},{b}{close}",
        rf"x\in\left{open_}{a}, {b}\right{close}",
        rf"\bigl{open_}{a}, {b}\bigr{close}",
    )
    if b == r"\infty":
        yield from (
            f"x{greater[lower]} {a}",
            f"{a}{lower} x",
            rf"{open_}{a},+\infty{close}",
            rf"{open_}{a},∞{close}",
            rf"{a}{lower} x<\infty",
        )
        yield from (
            rf"{open_}{a},\infty {close}",
            f"t {greater[lower]} {a}",
            rf"\{{x : x {greater[lower]} {a}\}}",
            rf"{open_}{a}.0,\infty{close}",
        )
    elif a == r"-\infty":
        yield from (
            f"x{upper} {b}",
            f"{b}{greater[upper]} x",
            rf"{open_}-∞,{b}{close}",
            rf"-\infty<x{upper} {b}",
            rf"{open_}-\infty, {b}.0{close}",
        )
        yield from (
            rf"\{{x : x {upper} {b}\}}",
            f"t {upper} {b}",
            rf"\{{x \mid x {upper} {b}\}}",
            rf"{open_} -\infty,\ {b} {close}",
        )
    else:
        yield from (
            f"{a}{lower} x{upper} {b}",
            f"{b}{greater[upper]} x{greater[lower]} {a}",
            rf"\{{x : {a} {lower} x {upper} {b}\}}",
        )
        yield from (
            rf"x {greater[lower]} {a} \text{{ and }} x {upper} {b}",
            rf"{open_}\frac{{2({a})}}{{2}},{b}{close}",
            rf"{open_}{a},{b}+0{close}",
        )
        yield from (
            f"{a} {lower}{'q' if lower == '<' else ''} y".replace("<q", "<") + f" {upper} {b}",
            rf"{open_}{a},\ {b}{close}",
            rf"{open_}{a},\;{b}{close}",
        )


def _interval_other(match: re.Match[str]) -> Iterator[str]:
    open_, a, b, close = match["open"], match["a"], match["b"], match["close"]
    finite_a, finite_b = "infty" not in a, "infty" not in b
    if finite_a:
        turned = "[" if open_ == "(" else "("
        yield from (
            f"{turned}{a},{b}{close}",
            f"{open_}{a}+1,{b}{close}",
            f"{open_}{a}-1,{b}{close}",
            rf"{open_}-\infty,{b}{close}",
            a,
        )
    if finite_b:
        turned = "]" if close == ")" else ")"
        yield from (
            f"{open_}{a},{b}{turned}",
            f"{open_}{a},{b}+1{close}",
            f"{open_}{a},{b}-1{close}",
            rf"{open_}{a},\infty)",
            b,
        )
    yield from (
        f"{open_}{a},{b}{close}, 0",
        f"{open_}{a},{b}",
        r"\emptyset",
        r"(-\infty,\infty)",
        rf"\{{{a},{b}\}}" if finite_a and finite_b else r"\mathbb{R}",
    )
    if finite_a != finite_b:
        end, bracket, ways = (a, open_, (">", r"\ge")) if finite_a else (b, close, ("<", r"\le"))
        yield from (f"x = {end}", f"x {ways[bracket in '()']} {end}")
        yield from (f"x {way} {end}" for way in (("<", r"\le") if finite_a else (">", r"\ge")))
    else:
        yield from (f"{a} < x < {b}+1", rf"{a}-1 \le x \le {b}", f"x < {b}", f"x > {a}")


def _union_same(match: re.Match[str]) -> Iterator[str]:
    left, right = match["left"], match["right"]
    (a, b), (c, d) = parts_of(left[1:-1]), parts_of(right[1:-1])
    for cup in (r"\cup", r" \cup ", r"\,\cup\,", "\N{UNION}", r"\bigcup"):
        yield f"{left}{cup}{right}"
    yield from (
        rf"{right}\cup{left}",
        rf"x \in {left} \cup {right}",
        rf"\left({a},{b}\right)\cup\left({c},{d}\right)",
        rf"x\in {right} \cup {left}",
    )
    yield from (
        rf"({a}, {b}) \cup ({c}, {d})",
        rf"x \in {left} \text{{ or }} x \in {right}",
        rf"\bigl({a},{b}\bigr) \cup \bigl({c},{d}\bigr)",
        f"{left} \N{UNION} {right}",
    )
    first = f"x<{b}" if "infty" in a else f"{a}<x<{b}"
    second = f"x>{c}" if "infty" in d else f"{c}<x<{d}"
    yield from (rf"{first} \text{{ or }} {second}", rf"{second} \text{{ or }} {first}")


def _union_other(match: re.Match[str]) -> Iterator[str]:
    left, right = match["left"], match["right"]
    (a, b), (c, d) = parts_of(left[1:-1]), parts_of(right[1:-1])
    yield from (
        left,
        right,
        f"({a},{d})",
        rf"{left} \cap {right}",
        rf"({a},{b}] \cup {right}",
        rf"{left} \cup [{c},{d})",
        rf"({a},{b}+1)\cup {right}",
    )
    yield from (
        rf"{left} \cup ({c}+1,{d})",
        rf"({b},{c})",
        f"[{b},{c}]",
        rf"{left}\cup{right}\cup\{{{c}-{c}+{b}\}}",
        r"\emptyset",
    )


def _cells(match: re.Match[str]) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("&")] for row in match["cells"].split(r"\\")]


def _write(
    rows: list[list[str]], opening: str = r"\begin{pmatrix}", closing: str = r"\end{pmatrix}", space: str = " "
) -> str:
    return (
        opening
        + space
        + (space + r"\\" + space).join((space + "&" + space).join(row) for row in rows)
        + space
        + closing
    )


def _matrix_same(match: re.Match[str]) -> Iterator[str]:
    rows = _cells(match)
    for kind in ("pmatrix", "bmatrix", "Bmatrix", "matrix"):
        for space in (" ", ""):
            if kind != "matrix":
                yield _write(rows, rf"\begin{{{kind}}}", rf"\end{{{kind}}}", space)
    array = r"\begin{array}{" + "c" * len(rows[0]) + "}"
    yield from (
        _write(rows, r"\left(" + array, r"\end{array}\right)"),
        _write(rows, r"\left[" + array, r"\end{array}\right]"),
    )
    yield from (
        _write(rows, r"\left(\begin{matrix}", r"\end{matrix}\right)"),
        _write(rows, r"\left[\begin{matrix}", r"\end{matrix}\right]"),
        _write(rows, space="\n"),
    )
    yield from (
        "A = " + _write(rows),
        r"\mathbf{v} = " + _write(rows),
        _write([[rf"\frac{{2({cell})}}{{2}}" for cell in row] for row in rows]),
    )
    halves = [[re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", cell) for cell in row] for row in rows]
    yield from (
        _write(halves),
        _write(halves).replace(r"\frac", r"\dfrac"),
        _write([[f"{cell}+0" for cell in row] for row in rows]),
    )
    yield from (
        _write(rows).replace(r"\end", r"\\ \end"),
        _write(rows).replace("-", "\N{MINUS SIGN}"),
        _write(rows).replace(r" \\ ", r" \\[4pt] "),
    )


def _matrix_other(match: re.Match[str]) -> Iterator[str]:
    rows = _cells(match)
    turned = [list(column) for column in zip(*rows, strict=True)]
    if turned != rows:
        yield _write(turned)
    for at in range(len(rows)):
        for changed in (f"{rows[at][0]}+1", f"-({rows[at][0]})-1", "100"):
            yield _write([*rows[:at], [changed, *rows[at][1:]], *rows[at + 1 :]])
    if rows != rows[::-1]:
        yield _write(rows[::-1])
    yield from (
        _write(rows[:-1]),
        _write([*rows, ["0"] * len(rows[0])]),
        _write([[*row, "0"] for row in rows]),
        rows[0][0],
        _write(rows).replace("pmatrix", "vmatrix"),
    )
    yield from (
        _write([[f"-({cell})" for cell in row] for row in rows]),
        _write([[f"2({cell})+1" for cell in row] for row in rows]),
        r"\text{none}",
    )


SHAPES = [
    Form("matrix", re.compile(r"\\begin\{pmatrix\}(?P<cells>.*)\\end\{pmatrix\}"), _matrix_same, _matrix_other),
    Form("union of intervals", re.compile(r"(?P<left>\([^)]*\))\\cup(?P<right>\([^)]*\))"), _union_same, _union_other),
    Form(
        "interval",
        re.compile(r"(?:\\left)?(?P<open>\[)(?P<a>[^,]+),(?P<b>[^,]+?)(?:\\right)?(?P<close>[\])])"),
        _interval_same,
        _interval_other,
    ),
    Form(
        "interval",
        re.compile(r"(?:\\left)?(?P<open>[\[(])(?P<a>[^,]+),(?P<b>[^,]+?)(?:\\right)?(?P<close>\])"),
        _interval_same,
        _interval_other,
    ),
    Form(
        "interval", re.compile(r"(?P<open>\()(?P<a>[^,]+),(?P<b>\\infty)(?P<close>\))"), _interval_same, _interval_other
    ),
    Form(
        "interval",
        re.compile(r"x\\in(?P<open>\[)(?P<a>[^,]+),(?P<b>[^,]+)(?P<close>\])"),
        _interval_same,
        _interval_other,
    ),
    Form("tuple", re.compile(r"(?:\\left)?\((?P<inside>[^()]+(?:,[^()]+?)+)(?:\\right)?\)"), _tuple_same, _tuple_other),
]
