r"""Rewritings and near misses of the other answers: sums, expressions, equations, tuples, intervals, matrices, words.

For bench/verify.py, as bench/verify_numbers.py. Patterns are tried in the order of SHAPES, on a gold answer with its
spaces taken out (words keep theirs); the last one takes what is left, as an expression that sympy can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import sympy
from sympy.parsing.sympy_parser import convert_xor, implicit_multiplication_application, parse_expr, standard_transformations

from bench.verify_numbers import Form

READ = (*standard_transformations, implicit_multiplication_application, convert_xor)


def expression(text: str) -> sympy.Expr:
    """A polynomial-like answer by sympy's own reader, not by the one that is measured."""
    plain = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    plain = re.sub(r"\\cot ?(\w)", r"cot(\1)", plain)
    return parse_expr(plain, transformations=READ)


def _sum_same(found: re.Match[str]) -> Iterator[str]:
    first, mark, second = found["first"], found["mark"], found["second"]
    back = "-" if mark == "-" else "+"
    turned = f"{'-' if mark == '-' else ''}{second}{'' if first.startswith('-') else '+'}{first}"
    whole = f"{first}{mark}{second}"
    yield from (whole, f"{first} {mark} {second}", turned, f"({first}){back}({second})", rf"\left({whole}\right)", f"x = {whole}")
    yield from (rf"\frac{{2({whole})}}{{2}}", rf"{whole}+1-1", f"-(-({whole}))", rf"{first}{mark}{{{second}}}", rf"z={turned}")
    yield from (rf"{first}\,{mark}\,{second}", rf"{first} {mark} 1 \cdot {second}", rf"\frac{{{whole}}}{{1}}", rf"2 \cdot \left({whole}\right) / 2")
    yield from (f"{first}{mark}{second}+0", rf"{whole}\text{{ units}}", f"{first} - (-({second}))" if mark == "+" else f"{first} + (-{second})")


def _sum_other(found: re.Match[str]) -> Iterator[str]:
    first, mark, second = found["first"], found["mark"], found["second"]
    turned = "-" if mark == "+" else "+"
    yield from (f"{first}{turned}{second}", f"-({first}{mark}{second})", first, second, f"{first}{mark}{second}+1", f"2({first}{mark}{second})")
    yield from (f"{first},{second}", f"({first},{second})", rf"{first}\pm {second}", f"({first})({second})", f"{first}{mark}{second}-1")
    yield from (f"{first}{mark}2{second}" if not second[0].isdigit() else f"{first}{mark}1{second}", rf"{first}{mark}{second}, 0")
    letter = next((one for one in ("i", r"\pi", r"\sqrt") if one in first + second), "")
    yield (first + mark + second).replace(letter, {"i": "", r"\pi": "", r"\sqrt": ""}[letter])


def _plus_minus_same(found: re.Match[str]) -> Iterator[str]:
    a, b = found["a"], found["b"]
    up, down = f"{a}+{b}", f"{a}-{b}"
    yield from (rf"{a}\pm{b}", rf"{a} \pm {b}", f"{up},{down}", f"{down}, {up}", rf"\{{{up},{down}\}}", rf"\{{{down}, {up}\}}")
    yield from (rf"x={a}\pm {b}", rf"x = {up}, {down}", rf"x={up} \text{{ or }} x={down}", rf"{up} \text{{ and }} {down}", rf"x={up}, x={down}")
    yield from (rf"{a}±{b}", rf"x \in \{{{up}, {down}\}}", rf"\left\{{{up}, {down}\right\}}", rf"x={down} \text{{ or }} {up}", f"{up}; {down}")


def _plus_minus_other(found: re.Match[str]) -> Iterator[str]:
    a, b = found["a"], found["b"]
    yield from (f"{a}+{b}", f"{a}-{b}", rf"-{a}\pm {b}", rf"{a}1\pm {b}", rf"{b} \pm {a}", f"[{a}-{b},{a}+{b}]", f"{a}+{b},{a}+{b}")
    yield from (f"{a}+{b},{a}-{b},0", f"{a}, {b}", rf"{a} \pm 2{b}" if not b[0].isdigit() else rf"{a}\pm 1{b}", f"-{a}-{b},-{a}+{b}", rf"\pm {a}")


def _expression_same(found: re.Match[str]) -> Iterator[str]:
    text = found[0]
    value = expression(text)
    for changed in (sympy.expand(value), sympy.factor(value), sympy.together(value), 3 * value):
        written = sympy.latex(changed)
        yield written if changed != 3 * value else rf"\frac{{{written}}}{{3}}"
    yield sympy.latex(sympy.expand(value), order="rev-lex")
    yield sympy.latex(sympy.expand(value), mul_symbol="dot")
    yield from (f"({text})", rf"\left({text}\right)", f"y = {text}", f"{text}+0", f"{text} + 1 - 1", f"-(-({text}))", f"1({text})")
    yield from (rf"\frac{{2({text})}}{{2}}", re.sub(r"\^(\d)", r"^{\1}", text), re.sub(r"([-+])", r" \1 ", text), f"f(x)={text}")
    yield from (re.sub(r"(\d)([a-zA-Z])", r"\1*\2", text) if "\\" not in text else rf"\displaystyle {text}", rf"\dfrac{{5({text})}}{{5}}")


def _expression_other(found: re.Match[str]) -> Iterator[str]:
    text = found[0]
    value = expression(text)
    letters = sorted(value.free_symbols, key=str)
    changes = [value + 1, -value, 2 * value, value + letters[0], value - 1, value**2, sympy.diff(value, letters[0]) + 11]
    changes += [value.subs(letters[0], sympy.Symbol("w")), value.subs(letters[0], letters[0] + 1), value.subs(letters[0], 3)]
    changes += [value.subs(letters[0], -letters[0])] if value.subs(letters[0], -letters[0]) != value else []
    terms = sympy.Add.make_args(sympy.expand(value))
    changes += [value - term for term in terms] + [value - 2 * term for term in terms] + [value + term for term in terms]
    yield from (sympy.latex(sympy.expand(changed)) for changed in changes)
    yield from (f"{text}, 1", f"{text} ((", "0", r"\text{none}", f"{text}>0")


def _equation_same(found: re.Match[str]) -> Iterator[str]:
    left, right = found["left"], found["right"]
    yield from (f"{left}={right}", f"{right}={left}", f"{left}-({right})=0", f"({right})-({left})=0", f"0={left}-({right})")
    yield from (f"{left}+1={right}+1", f"-({left})=-({right})", rf"\left({left}\right) = {right}", f"{left}+x={right}+x")
    yield from (rf"{left}\,=\,{right}", f"{left} - 7 = {right} - 7", f"{left} = {right} + 0")
    if re.search("[a-z]", right) or right == "0":
        yield from (f"2({left})=2({right})", f"3({left})-3({right})=0", rf"\frac{{{left}}}{{2}}=\frac{{{right}}}{{2}}")
    if len(left) == 1:
        yield from (rf"{left} = \left({right}\right)", rf"{left} = 1 \cdot ({right})")
        if re.fullmatch(r"-?\d+", right):
            yield right


def _equation_other(found: re.Match[str]) -> Iterator[str]:
    left, right = found["left"], found["right"]
    yield from (f"{left}={right}+1", f"{left}=-({right})-1", f"{left}<{right}", rf"{left}\ge {right}", rf"{left} \ne {right}", f"{left}={right}+2x")
    yield from (f"2({left})={right}-3", f"{left}+1={right}", f"({left})^2=({right})^2+1", "x=0", "0=0", f"{left}={right}, x=1" if right != "1" else "x=7")
    if len(left) == 1:
        yield from (left, f"{left}={right} (", f"{left}=2({right})")


def _parts(text: str) -> list[str]:
    """A list's members: commas inside brackets or braces do not part."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _tuple_same(found: re.Match[str]) -> Iterator[str]:
    parts = _parts(found["inside"])
    doubled = [rf"\frac{{2({part})}}{{2}}" if "infty" not in part else part for part in parts]
    letters = ",".join("xyzwuvst"[: len(parts)])
    for comma in (",", ", ", r",\,", r",\ ", " , ", r",~", r",\;"):
        yield f"({comma.join(parts)})"
    inside = ", ".join(parts)
    yield from (rf"\left({inside}\right)", rf"\left( {inside} \right)", rf"\big({inside}\big)", rf"\bigl({inside}\bigr)", f"({letters})=({inside})")
    yield from (f"({','.join(doubled)})", f"({doubled[0]},{','.join(parts[1:])})", rf"\left(\displaystyle {inside}\right)", f"P = ({inside})")
    yield from ("(" + inside.replace(r"\frac", r"\dfrac") + ")", "(" + inside.replace("-", "\N{MINUS SIGN}") + ")", rf"\Bigl({inside}\Bigr)")


def _tuple_other(found: re.Match[str]) -> Iterator[str]:
    parts = _parts(found["inside"])
    if parts != parts[::-1]:
        yield f"({','.join(reversed(parts))})"
    for at in range(len(parts)):
        for changed in (f"{parts[at]}+1", f"{parts[at]}-1", f"2({parts[at]})+5"):
            yield f"({','.join([*parts[:at], changed, *parts[at + 1 :]])})"
    inside = ",".join(parts)
    yield from (f"({inside},0)", f"({','.join(parts[:-1])})", f"({inside}]", f"[{inside})", f"({inside}),(0,0)", parts[0], parts[-1])
    yield from (f"({','.join(f'-({part})-2' for part in parts)})", f"({inside}", r"\text{none}")


def _interval_same(found: re.Match[str]) -> Iterator[str]:
    open_, a, b, close = found["open"], found["a"], found["b"], found["close"]
    lower, upper = ("<" if open_ == "(" else r"\le"), ("<" if close == ")" else r"\le")
    greater = {"<": ">", r"\le": r"\ge"}
    for text in (f"{a},{b}", f"{a}, {b}", f" {a} , {b} ", rf"{a},\,{b}"):
        yield f"{open_}{text}{close}"
    yield from (rf"\left{open_}{a},{b}\right{close}", rf"x \in {open_}{a},{b}{close}", rf"x\in\left{open_}{a}, {b}\right{close}", rf"\bigl{open_}{a}, {b}\bigr{close}")
    if b == r"\infty":
        yield from (f"x{greater[lower]} {a}", f"{a}{lower} x", rf"{open_}{a},+\infty{close}", rf"{open_}{a},∞{close}", rf"{a}{lower} x<\infty")
        yield from (rf"{open_}{a},\infty {close}", f"t {greater[lower]} {a}", rf"\{{x : x {greater[lower]} {a}\}}", rf"{open_}{a}.0,\infty{close}")
    elif a == r"-\infty":
        yield from (f"x{upper} {b}", f"{b}{greater[upper]} x", rf"{open_}-∞,{b}{close}", rf"-\infty<x{upper} {b}", rf"{open_}-\infty, {b}.0{close}")
        yield from (rf"\{{x : x {upper} {b}\}}", f"t {upper} {b}", rf"\{{x \mid x {upper} {b}\}}", rf"{open_} -\infty,\ {b} {close}")
    else:
        yield from (f"{a}{lower} x{upper} {b}", f"{b}{greater[upper]} x{greater[lower]} {a}", rf"\{{x : {a} {lower} x {upper} {b}\}}")
        yield from (rf"x {greater[lower]} {a} \text{{ and }} x {upper} {b}", rf"{open_}\frac{{2({a})}}{{2}},{b}{close}", rf"{open_}{a},{b}+0{close}")
        yield from (f"{a} {lower}{'q' if lower == '<' else ''} y".replace("<q", "<") + f" {upper} {b}", rf"{open_}{a},\ {b}{close}", rf"{open_}{a},\;{b}{close}")


def _interval_other(found: re.Match[str]) -> Iterator[str]:
    open_, a, b, close = found["open"], found["a"], found["b"], found["close"]
    finite_a, finite_b = "infty" not in a, "infty" not in b
    if finite_a:
        turned = "[" if open_ == "(" else "("
        yield from (f"{turned}{a},{b}{close}", f"{open_}{a}+1,{b}{close}", f"{open_}{a}-1,{b}{close}", rf"{open_}-\infty,{b}{close}", a)
    if finite_b:
        turned = "]" if close == ")" else ")"
        yield from (f"{open_}{a},{b}{turned}", f"{open_}{a},{b}+1{close}", f"{open_}{a},{b}-1{close}", rf"{open_}{a},\infty)", b)
    yield from (f"{open_}{a},{b}{close}, 0", f"{open_}{a},{b}", r"\emptyset", rf"(-\infty,\infty)", rf"\{{{a},{b}\}}" if finite_a and finite_b else r"\mathbb{R}")
    if finite_a != finite_b:
        end, bracket, ways = (a, open_, (">", r"\ge")) if finite_a else (b, close, ("<", r"\le"))
        yield from (f"x = {end}", f"x {ways[bracket in '()']} {end}")
        yield from (f"x {way} {end}" for way in (("<", r"\le") if finite_a else (">", r"\ge")))
    else:
        yield from (f"{a} < x < {b}+1", rf"{a}-1 \le x \le {b}", f"x < {b}", f"x > {a}")


def _union_same(found: re.Match[str]) -> Iterator[str]:
    one, two = found["one"], found["two"]
    (a, b), (c, d) = _parts(one[1:-1]), _parts(two[1:-1])
    for cup in (r"\cup", r" \cup ", r"\,\cup\,", "∪", r"\bigcup"):
        yield f"{one}{cup}{two}"
    yield from (rf"{two}\cup{one}", rf"x \in {one} \cup {two}", rf"\left({a},{b}\right)\cup\left({c},{d}\right)", rf"x\in {two} \cup {one}")
    yield from (rf"({a}, {b}) \cup ({c}, {d})", rf"{one} \text{{ or }} {two}", rf"\bigl({a},{b}\bigr) \cup \bigl({c},{d}\bigr)", rf"{one} ∪ {two}")
    first = f"x<{b}" if "infty" in a else f"{a}<x<{b}"
    second = f"x>{c}" if "infty" in d else f"{c}<x<{d}"
    yield from (rf"{first} \text{{ or }} {second}", rf"{second} \text{{ or }} {first}")


def _union_other(found: re.Match[str]) -> Iterator[str]:
    one, two = found["one"], found["two"]
    (a, b), (c, d) = _parts(one[1:-1]), _parts(two[1:-1])
    yield from (one, two, f"({a},{d})", rf"{one} \cap {two}", rf"({a},{b}] \cup {two}", rf"{one} \cup [{c},{d})", rf"({a},{b}+1)\cup {two}")
    yield from (rf"{one} \cup ({c}+1,{d})", rf"({b},{c})", f"[{b},{c}]", rf"{one}\cup{two}\cup\{{{c}-{c}+{b}\}}", r"\emptyset")


def _members(found: re.Match[str]) -> list[str]:
    members = []
    for part in _parts(re.sub(r"^\\\{|\\\}$", "", found[0])):
        a, both, b = part.partition(r"\pm")
        members += [f"{a}+{b}", f"{a}-{b}"] if both else [part]
    return members


def _list_same(found: re.Match[str]) -> Iterator[str]:
    parts = _members(found)
    for order in (parts, parts[::-1], parts[1:] + parts[:1]):
        yield from (",".join(order), ", ".join(order), rf"\{{{', '.join(order)}\}}", rf"\left\{{{','.join(order)}\right\}}", "x=" + ",".join(order))
        yield from (r" \text{ and } ".join([", ".join(order[:-1]), order[-1]]), ", ".join(f"x={part}" for part in order))
        yield from (r" \text{ or } ".join(f"x={part}" for part in order) if len(order) == 2 else rf"x \in \{{{','.join(order)}\}}", "; ".join(order))


def _list_other(found: re.Match[str]) -> Iterator[str]:
    parts = _members(found)
    yield from (", ".join(parts[:-1]), ", ".join(parts[1:]), ", ".join([*parts, "100"]), parts[0], parts[-1], " + ".join(parts), "100")
    for at in range(len(parts)):
        for changed in (f"{parts[at]}+100", f"-100{parts[at]}", f"{parts[at]}+i"):
            yield ", ".join([*parts[:at], changed, *parts[at + 1 :]])
    yield from (", ".join([*parts[:-1], parts[0]]), rf"\{{{parts[0]}\}}", "{}{}".format(parts[0], parts[-1].lstrip("-")))


def _cells(found: re.Match[str]) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("&")] for row in found["cells"].split(r"\\")]


def _write(rows: list[list[str]], begin: str = r"\begin{pmatrix}", end: str = r"\end{pmatrix}", space: str = " ") -> str:
    return begin + space + (space + r"\\" + space).join((space + "&" + space).join(row) for row in rows) + space + end


def _matrix_same(found: re.Match[str]) -> Iterator[str]:
    rows = _cells(found)
    for kind in ("pmatrix", "bmatrix", "Bmatrix", "matrix"):
        for space in (" ", ""):
            if kind != "matrix":
                yield _write(rows, rf"\begin{{{kind}}}", rf"\end{{{kind}}}", space)
    columns = "c" * len(rows[0])
    yield from (_write(rows, r"\left(\begin{array}{%s}" % columns, r"\end{array}\right)"), _write(rows, r"\left[\begin{array}{%s}" % columns, r"\end{array}\right]"))
    yield from (_write(rows, r"\left(\begin{matrix}", r"\end{matrix}\right)"), _write(rows, r"\left[\begin{matrix}", r"\end{matrix}\right]"), _write(rows, space="\n"))
    yield from ("A = " + _write(rows), r"\mathbf{v} = " + _write(rows), _write([[rf"\frac{{2({cell})}}{{2}}" for cell in row] for row in rows]))
    halves = [[re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", cell) for cell in row] for row in rows]
    yield from (_write(halves), _write(halves).replace(r"\frac", r"\dfrac"), _write([[f"{cell}+0" for cell in row] for row in rows]))
    yield from (_write(rows).replace(r"\end", r"\\ \end"), _write(rows).replace("-", "\N{MINUS SIGN}"), _write(rows).replace(r" \\ ", r" \\[4pt] "))


def _matrix_other(found: re.Match[str]) -> Iterator[str]:
    rows = _cells(found)
    turned = [list(column) for column in zip(*rows, strict=True)]
    if turned != rows:
        yield _write(turned)
    for at in range(len(rows)):
        for changed in (f"{rows[at][0]}+1", f"-({rows[at][0]})-1", "100"):
            yield _write([*rows[:at], [changed, *rows[at][1:]], *rows[at + 1 :]])
    if rows != rows[::-1]:
        yield _write(rows[::-1])
    yield from (_write(rows[:-1]), _write([*rows, ["0"] * len(rows[0])]), _write([[*row, "0"] for row in rows]), rows[0][0], _write(rows).replace("pmatrix", "vmatrix"))
    yield from (_write([[f"-({cell})" for cell in row] for row in rows]), _write([[f"2({cell})+1" for cell in row] for row in rows]), r"\text{none}")


def _money_same(found: re.Match[str]) -> Iterator[str]:
    digits = re.sub(r"[,\\!]", "", found["amount"])
    whole, _, cents = digits.partition(".")
    grouped = f"{int(whole):,}" + (f".{cents}" if cents else "")
    for text in dict.fromkeys((digits, grouped, grouped.replace(",", "{,}"), grouped.replace(",", r",\!"))):
        yield from (text, rf"\${text}", f"${text}", rf"{text}\text{{ dollars}}", rf"\text{{\${text}}}", rf"\$ {text}")
    yield from (rf"{digits}\$", f"{digits} dollars", rf"x = \${digits}", rf"\${digits}0" if cents else rf"\${digits}.00", rf"\text{{USD }}{digits}", f"{digits} USD")


def _money_other(found: re.Match[str]) -> Iterator[str]:
    digits = re.sub(r"[,\\!]", "", found["amount"])
    yield from (f"{digits}1", f"1{digits}", rf"\$1{digits}", f"-{digits}", rf"\$-{digits}", digits[:-1] + ("1" if digits[-1] != "1" else "2"), digits[1:])
    yield from (rf"{digits}\text{{ cents}}", rf"{digits}, 1", rf"{digits}\text{{ or }}1", f"{digits}x", "0", rf"\frac{{{digits}}}{{2}}", digits.replace(".", "") + "00")


def _unit_same(found: re.Match[str]) -> Iterator[str]:
    value, unit, power = found["value"], found["unit"].strip(), found["power"] or ""
    exponent = power.strip("^{}")
    marks = [power] if not power else [power, f"^{{{exponent}}}"]
    for mark in marks:
        yield from (rf"{value}\text{{ {unit}}}{mark}", rf"{value} \text{{{unit}}}{mark}", rf"{value}\,\text{{{unit}}}{mark}", rf"{value}\mathrm{{ {unit}}}{mark}")
        yield from (rf"{value}~\mathrm{{{unit}}}{mark}", rf"{value}\mbox{{ {unit}}}{mark}", f"{value} {unit}{mark}", rf"{value}\textrm{{ {unit}}}{mark}")
    yield from (value, f"x={value}", rf"A = {value}\text{{ {unit}}}{power}", rf"{value}\text{{ {unit}}}{power}.", rf"\left({value}\right)\text{{ {unit}}}{power}")
    if exponent == "2":
        yield from (rf"{value}\text{{ square {unit}}}", rf"{value}\text{{ sq. {unit}}}", rf"{value}\text{{ {unit}$^2$}}", rf"{value}\text{{ {unit}}}²")


def _unit_other(found: re.Match[str]) -> Iterator[str]:
    value, unit, power = found["value"], found["unit"].strip(), found["power"] or ""
    for changed in (f"{value}+1", f"{value}-1", f"-{value}", f"10({value})", f"2\\cdot {value}"):
        yield from (changed, rf"{changed}\text{{ {unit}}}{power}")
    for wrong in ("kg", "hours", "miles", r"dollars"):
        yield rf"{value}\text{{ {wrong}}}{power}"
    yield from (rf"{value}\text{{ {unit}}}^{{3}}", rf"{value}, 1\text{{ {unit}}}{power}", rf"\text{{{unit}}}{power}")


def _choice_same(found: re.Match[str]) -> Iterator[str]:
    letter = found["letter"]
    for command in ("text", "textbf", "mathrm", "mathbf", "textrm", "mbox"):
        yield from (rf"\{command}{{({letter})}}", rf"\{command}{{{letter}}}")
    yield from (f"({letter})", letter, rf"(\text{{{letter}}})", f"{letter}.", f"({letter}).", rf"\left({letter}\right)", f"{letter})", letter.lower(), rf"\text{{Choice {letter}}}")
    yield from (rf"\text{{({letter.lower()})}}", rf"\text{{ ({letter}) }}", f"**{letter}**", rf"\text{{Option }} {letter}", rf"\textbf{{({letter}) }}")


def _choice_other(found: re.Match[str]) -> Iterator[str]:
    for letter in "ABCDEFG":
        if letter != found["letter"]:
            yield from (letter, rf"\text{{({letter})}}", rf"\text{{{found['letter']}, {letter}}}")
    yield from (rf"\text{{not {found['letter']}}}", "5", f"{found['letter']}{found['letter']}", rf"{found['letter']} + 1", rf"\text{{A, B, C, D, E}}", rf"2{found['letter']}")


def _word_same(found: re.Match[str]) -> Iterator[str]:
    word = found["word"]
    for command in ("text", "textbf", "mathrm", "textrm", "mbox", "textit", "mathbf"):
        yield from (rf"\{command}{{{word}}}", rf"\{command}{{ {word} }}")
    yield from (word, word.lower(), word.upper(), word.capitalize(), f"{word}.", rf"\text{{{word}.}}", f'"{word}"', rf"\text{{{word.lower()}}}", f"**{word}**", rf"\text{{{word.upper()}}}")


def _word_other(found: re.Match[str]) -> Iterator[str]:
    word = found["word"]
    others = [word[::-1], word[:-1], word + "s", "un" + word, "".join(sorted(word)), word[1:], f"not {word}", f"{word} and Bob", f"{word} or Bob", "odd", "Zed"]
    for other in others:
        if other.lower() != word.lower():
            yield from (rf"\text{{{other}}}", other)
    yield from ("1", "x", rf"\text{{{word}}}, \text{{Bob}}", rf"\text{{{word}}} + 1", rf"2\text{{{word}}}", rf"\text{{neither {word} nor Bob}}")


INTERVAL = re.compile(r"(?:\\left)?(?P<open>[\[(])(?P<a>[^,]+),(?P<b>[^,]+?)(?:\\right)?(?P<close>[\])])")
_TERM = r"-?(?:\d+(?:\\sqrt\{?\d+\}?|\\pi|i)?|\\sqrt\{?\d+\}?)"
_WORDS = r"\\(?:text|mbox)\{"

SHAPES = [
    Form("choice", re.compile(_WORDS + r"\((?P<letter>[A-Z])\)\}"), _choice_same, _choice_other),
    Form("word", re.compile(_WORDS + r"(?P<word>[A-Za-z ]+)\}"), _word_same, _word_other),
    Form("units", re.compile(r"(?P<value>.*\d\}?)" + _WORDS + r"(?P<unit>[A-Za-z ]+)\}(?P<power>\^\d)?"), _unit_same, _unit_other),
    Form("currency", re.compile(r"\\\$(?P<amount>[\d,\\!.]+)"), _money_same, _money_other),
    Form("sum of two", re.compile(rf"(?P<first>{_TERM})(?P<mark>[-+])(?P<second>{_TERM})"), _sum_same, _sum_other),
    Form("plus or minus", re.compile(r"(?P<a>[^,{]+)\\pm(?P<b>[^,]+)"), _plus_minus_same, _plus_minus_other),
    Form("matrix", re.compile(r"\\begin\{pmatrix\}(?P<cells>.*)\\end\{pmatrix\}"), _matrix_same, _matrix_other),
    Form("union of intervals", re.compile(r"(?P<one>\([^)]*\))\\cup(?P<two>\([^)]*\))"), _union_same, _union_other),
    Form("interval", re.compile(r"(?:\\left)?(?P<open>\[)(?P<a>[^,]+),(?P<b>[^,]+?)(?:\\right)?(?P<close>[\])])"), _interval_same, _interval_other),
    Form("interval", re.compile(r"(?:\\left)?(?P<open>[\[(])(?P<a>[^,]+),(?P<b>[^,]+?)(?:\\right)?(?P<close>\])"), _interval_same, _interval_other),
    Form("interval", re.compile(r"(?P<open>\()(?P<a>[^,]+),(?P<b>\\infty)(?P<close>\))"), _interval_same, _interval_other),
    Form("interval", re.compile(r"x\\in(?P<open>\[)(?P<a>[^,]+),(?P<b>[^,]+)(?P<close>\])"), _interval_same, _interval_other),
    Form("tuple", re.compile(r"(?:\\left)?\((?P<inside>[^()]+(?:,[^()]+?)+)(?:\\right)?\)"), _tuple_same, _tuple_other),
    Form("list", re.compile(r"\\\{.+\\\}|[^,(\[]+(?:,[^,)\]]+)+"), _list_same, _list_other),
    Form("equation", re.compile(r"(?P<left>[^=]+)=(?P<right>[^=]+)"), _equation_same, _equation_other),
    Form("expression", re.compile(r".*[a-zA-Z].*"), _expression_same, _expression_other),
]
