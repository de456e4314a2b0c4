r"""Generated classes of structured answers: tuples, sets, lists, intervals, matrices, words."""

from __future__ import annotations

import random

from bench.forms.generated import Pairs, answer_class, signed, total

_ITEMS = [r"\sqrt{2}", r"\frac{1}{2}", r"\pi", r"\frac{3}{4}", r"2\sqrt{3}", "0.5", r"-\frac{2}{3}", r"\frac{\pi}{6}"]
_EQUAL = {
    r"\sqrt{2}": r"\frac{2}{\sqrt{2}}", r"\frac{1}{2}": "0.5", r"\pi": r"\frac{2\pi}{2}", r"\frac{3}{4}": "0.75",
    r"2\sqrt{3}": r"\sqrt{12}", "0.5": r"\frac{1}{2}", r"-\frac{2}{3}": "-2/3", r"\frac{\pi}{6}": r"\frac16\pi",
}  # fmt: skip


def _values(rng: random.Random, count: int) -> list[str]:
    """Return different values, of which at most one is no integer."""
    values = [str(value) for value in rng.sample([n for n in range(-20, 21) if n], count)]
    if rng.random() < 0.6:
        values[rng.randrange(count)] = rng.choice(_ITEMS)
    return values


def _rewritten(value: str) -> str:
    return _EQUAL.get(value) or rf"\frac{{{2 * int(value)}}}{{2}}"


def _changed(values: list[str], at: int, text: str) -> list[str]:
    return [*values[:at], text, *values[at + 1 :]]


@answer_class("tuple")
def _tuple(rng: random.Random) -> Pairs:
    values = _values(rng, rng.randint(2, 4))
    at = rng.randrange(len(values))
    inside = ",".join(values)
    same = [
        f"({', '.join(values)})",
        rf"\left({inside}\right)",
        f"({','.join(_changed(values, at, _rewritten(values[at])))})",
        f"P=({inside})",
        rf"\big( {inside} \big)",
    ]
    same += [
        f"({','.join(map(_rewritten, values))})",
        "(" + inside.replace(",", ",\\ ") + ")",
        f"({','.join('xyzw'[: len(values)])})=({inside})",
        ", ".join(values),
    ]
    other = [
        f"({','.join(_changed(values, at, f'{values[at]}+1'))})",
        f"({','.join(values[::-1])})",
        f"({inside},0)",
        f"({','.join(values[:-1])})",
        rf"\{{{inside}\}}",
    ]
    other += [
        f"({','.join(_changed(values, at, f'-({values[at]})'))})",
        f"[{inside})",
        values[0],
        f"({','.join(_changed(values, at, '100'))})",
    ]
    return Pairs(f"({inside})", same, other)


@answer_class("tuple of tiny numbers")
def _tiny_tuple(rng: random.Random) -> Pairs:
    m, n, k = rng.randint(1, 9), rng.randint(1, 9), rng.randint(16, 40)
    gold = rf"({m}\times 10^{{-{k}}}, {n})"
    same = [
        f"({m}e-{k},{n})",
        rf"(\frac{{{m}}}{{10^{{{k}}}}},{n})",
        rf"\left({m}\cdot 10^{{-{k}}},{n}\right)",
        rf"({m}E-{k},{n}.0)",
    ]
    other = [
        f"({m}e-{k + 1},{n})",
        f"(-{m}e-{k},{n})",
        f"(0,{n})",
        f"({m + 1}e-{k},{n})",
        f"({m}e-{k - 1},{n})",
        rf"({m}e-{k},-{n})",
        f"({n},{m}e-{k})",
    ]
    return Pairs(gold, same, other)


@answer_class("set")
def _set(rng: random.Random) -> Pairs:
    values = _values(rng, rng.randint(2, 5))
    at = rng.randrange(len(values))
    turned = values[1:] + values[:1]
    same = [
        rf"\{{{', '.join(turned)}\}}",
        rf"\left\{{{','.join(values)}\right\}}",
        rf"\lbrace {','.join(values[::-1])} \rbrace",
        ", ".join(values),
        ", ".join(turned),
    ]
    same += [
        rf"\{{{','.join(_changed(values, at, _rewritten(values[at])))}\}}",
        rf"x \in \{{{','.join(values)}\}}",
        rf"S=\{{{','.join(values)}\}}",
    ]
    other = [
        rf"\{{{','.join(values[1:])}\}}",
        rf"\{{{','.join([*values, '100'])}\}}",
        rf"\{{{','.join(_changed(values, at, f'{values[at]}+50'))}\}}",
        values[0],
        r"\emptyset",
    ]
    other += (
        [rf"\{{{','.join(_changed(values, at, f'-({values[at]})'))}\}}"]
        if f"-{values[at]}".replace("--", "") not in values
        else []
    )
    return Pairs(rf"\{{{','.join(values)}\}}", same, other)


@answer_class("set of tiny numbers")
def _tiny_set(rng: random.Random) -> Pairs:
    m, k = rng.randint(2, 9), rng.randint(16, 40)
    n = m + 1
    same = [
        rf"\{{{n}e-{k},{m}e-{k}\}}",
        rf"{m}\cdot 10^{{-{k}}}, {n}\cdot 10^{{-{k}}}",
        rf"\{{{m}\times 10^{{-{k}}},{n}\times 10^{{-{k}}}\}}",
    ]
    other = [
        rf"\{{{m}e-{k},{m}e-{k}\}}",
        rf"\{{{m}e-{k + 1},{n}e-{k}\}}",
        rf"\{{-{m}e-{k},{n}e-{k}\}}",
        rf"\{{0,{n}e-{k}\}}",
        rf"\{{{m}e-{k}\}}",
    ]
    return Pairs(rf"\{{{m}e-{k},{n}e-{k}\}}", same, other)


@answer_class("list of solutions")
def _solutions(rng: random.Random) -> Pairs:
    values = _values(rng, rng.randint(2, 4))
    turned = values[1:] + values[:1]
    at = rng.randrange(len(values))
    same = [
        ", ".join(turned),
        rf"x = {', '.join(values)}",
        r" \text{ and } ".join(values),
        r" \text{ or } ".join(f"x={value}" for value in turned),
        rf"\{{{','.join(values)}\}}",
    ]
    same += [
        ",".join(map(_rewritten, values)),
        " and ".join(values),
        ", ".join(values[:-1]) + rf" \text{{ and }} {values[-1]}",
        "; ".join(values),
        ", ".join(f"x={value}" for value in values),
    ]
    other = [
        ", ".join(values[1:]),
        ", ".join([*values, "100"]),
        ", ".join(_changed(values, at, f"{values[at]}+50")),
        values[0],
        " + ".join(values),
    ]
    return Pairs(
        ", ".join(values),
        same,
        [
            *other,
            ", ".join(_changed(values, at, f"{values[at]}i")),
            ", ".join(f"({value})+1" for value in values[:1]) + "," + ",".join(values[1:]),
        ],
    )


@answer_class("list of points")
def _points(rng: random.Random) -> Pairs:
    (a, b), (c, d) = rng.sample([(x, y) for x in range(-9, 10) for y in range(-9, 10) if x != y], 2)
    same = [
        f"({c},{d}), ({a},{b})",
        rf"({a},{b}) \text{{ and }} ({c},{d})",
        rf"\{{({a},{b}),({c},{d})\}}",
        rf"\left({a},{b}\right),\left({c},{d}\right)",
        rf"({c},{d}) \text{{ or }} ({a},{b})",
    ]
    other = [
        f"({a},{b})",
        f"({b},{a}),({c},{d})",
        f"({a},{b}),({c},{d + 1})",
        f"({a},{b}),({d},{c})",
        f"({a},{c}),({b},{d})" if b != c else "0",
        f"({a},{b},{c},{d})",
    ]
    other = [text for text in other if {text} != {f"({a},{b}),({c},{d})"} and (c, d) != (b, a)]
    return Pairs(f"({a},{b}), ({c},{d})", same, other)


@answer_class("plus or minus")
def _plus_minus(rng: random.Random) -> Pairs:
    a, b, c = signed(rng, 1, 12), rng.randint(1, 6), rng.choice([2, 3, 5, 6, 7])
    root = rf"\sqrt{{{c}}}" if b == 1 else rf"{b}\sqrt{{{c}}}"
    gold = rf"{a}\pm {root}"
    same = [
        rf"{a}+{root}, {a}-{root}",
        rf"x={a}\pm {root}",
        rf"{a}-{root} \text{{ or }} {a}+{root}",
        rf"\{{{a}\pm {root}\}}",
        rf"{a} ± {root}",
        rf"{a}\mp {root}",
        rf"\frac{{{2 * a} \pm {2 * b}\sqrt{{{c}}}}}{{2}}",
    ]
    same += [rf"{a} \pm \sqrt{{{b * b * c}}}", rf"x_1={a}+{root}, x_2={a}-{root}"]
    other = [
        rf"{a}+{root}",
        rf"{a}-{root}",
        rf"{-a}\pm {root}",
        rf"{a}\pm {b + 1}\sqrt{{{c}}}",
        rf"{a}\pm i{root}",
        rf"\pm {root}",
        rf"{a}\pm {b}\sqrt{{{c + 10}}}",
        rf"{a + 1}\pm {root}",
    ]
    return Pairs(gold, same, other)


def _interval_ends(rng: random.Random) -> tuple[int, int, str, str]:
    a = rng.randint(-20, 19)
    return a, rng.randint(a + 1, 40), rng.choice("(["), rng.choice(")]")


@answer_class("interval")
def _interval(rng: random.Random) -> Pairs:
    a, b, left, right = _interval_ends(rng)
    lower, upper = ("<" if left == "(" else r"\le"), ("<" if right == ")" else r"\le")
    turned_lower, turned_upper = (">" if left == "(" else r"\ge"), (">" if right == ")" else r"\ge")
    gold = f"{left}{a},{b}{right}"
    same = [
        f"{left} {a} , {b} {right}",
        rf"\left{left}{a},{b}\right{right}",
        f"{a}{lower} x{upper} {b}",
        f"{b}{turned_upper} x{turned_lower} {a}",
        rf"x\in {gold}",
        rf"\{{x : {a}{lower} x{upper} {b}\}}",
    ]
    same += [
        rf"x{turned_lower} {a} \text{{ and }} x{upper} {b}",
        rf"{left}\frac{{{2 * a}}}{{2}},{b}.0{right}",
        rf"\{{x\in\mathbb{{R}} \mid {a} {lower} x {upper} {b}\}}",
    ]
    flip_left, flip_right = ("[" if left == "(" else "("), ("]" if right == ")" else ")")
    other = [
        f"{flip_left}{a},{b}{right}",
        f"{left}{a},{b}{flip_right}",
        f"{left}{a + 1},{b}{right}" if a + 1 < b else "0",
        f"{left}{a},{b + 1}{right}",
        f"{a}{upper} x",
        rf"{left}{a},\infty)",
        rf"\{{{a},{b}\}}",
    ]
    other += [
        f"{left}{b},{a}{right}",
        rf"(-\infty,{a})\cup({b},\infty)",
        rf"{left}{-b},{-a}{right}" if a != -b else "1",
    ]
    return Pairs(gold, same, other)


@answer_class("union of intervals")
def _union(rng: random.Random) -> Pairs:
    a = rng.randint(-20, 10)
    b = a + rng.randint(1, 9)
    gold = rf"(-\infty,{a})\cup[{b},\infty)"
    same = [
        rf"[{b},\infty)\cup(-\infty,{a})",
        rf"x<{a} \text{{ or }} x\ge {b}",
        rf"x \in (-\infty,{a}) \cup [{b},\infty)",
        rf"\left(-\infty,{a}\right)\cup\left[{b},+\infty\right)",
        f"(-∞,{a})\N{UNION}[{b},∞)",
    ]
    same += [rf"\mathbb{{R}}\setminus[{a},{b})", f"x < {a} or x >= {b}", rf"\{{x : x<{a} \text{{ or }} x \geq {b}\}}"]
    other = [
        rf"(-\infty,{a}]\cup[{b},\infty)",
        rf"(-\infty,{a})\cup({b},\infty)",
        rf"(-\infty,{a - 1})\cup[{b},\infty)",
        rf"[{a},{b})",
        rf"(-\infty,{a})",
        rf"(-\infty,{a})\cap[{b},\infty)",
    ]
    return Pairs(gold, same, [*other, r"(-\infty,\infty)", rf"x<{a} \text{{ or }} x\ge {b + 1}"])


@answer_class("excluded points")
def _excluded(rng: random.Random) -> Pairs:
    a, b = sorted(rng.sample(range(-9, 10), 2))
    gold = rf"(-\infty,{a})\cup({a},{b})\cup({b},\infty)"
    same = [
        rf"\mathbb{{R}}\setminus\{{{a},{b}\}}",
        rf"x\ne {a} \text{{ and }} x \neq {b}",
        rf"({b},\infty)\cup(-\infty,{a})\cup({a},{b})",
        rf"x \neq {a}, x\neq {b}",
        rf"\{{x\in\mathbb{{R}} : x\ne {a}, x\ne {b}\}}",
    ]
    other = [
        rf"\mathbb{{R}}\setminus\{{{a}\}}",
        rf"(-\infty,{a})\cup({b},\infty)",
        r"\mathbb{R}",
        rf"\mathbb{{R}}\setminus[{a},{b}]",
        rf"({a},{b})",
        rf"\mathbb{{R}}\setminus\{{{a},{b + 1}\}}",
    ]
    return Pairs(gold, same, other)


@answer_class("inequality")
def _inequality(rng: random.Random) -> Pairs:
    a, sign = signed(rng, 1, 40), rng.choice(["<", ">", r"\le", r"\ge"])
    turned = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]
    bracket = "]" if sign == r"\le" else ")"
    left = "[" if sign == r"\ge" else "("
    whole = rf"(-\infty,{a}{bracket}" if sign in ("<", r"\le") else rf"{left}{a},\infty)"
    same = [
        f"{a} {turned} x",
        whole,
        rf"x\in {whole}",
        rf"\{{x : x {sign} {a}\}}",
        f"x {sign} {a}.0",
        rf"x {sign} \frac{{{2 * a}}}{{2}}",
    ]
    plain = {r"\le": "<=", r"\ge": ">="}.get(sign, sign)
    same += [f"x {plain} {a}"]
    strict = {"<": r"\le", ">": r"\ge", r"\le": "<", r"\ge": ">"}[sign]
    other = [
        f"x {turned} {a}",
        f"x {strict} {a}",
        f"x {sign} {a + 1}",
        f"x={a}",
        f"x {sign} {-a}",
        str(a),
        f"{a} {sign} x",
    ]
    return Pairs(f"x {sign} {a}", same, other)


@answer_class("inequality of an absolute value")
def _absolute(rng: random.Random) -> Pairs:
    a, r, strict = signed(rng, 1, 20), rng.randint(1, 20), rng.choice([True, False])
    less, more = ("<", ">") if strict else (r"\le", r"\ge")
    otherwise = r"\le" if strict else "<"
    ends = "()" if strict else "[]"
    inside = f"{ends[0]}{a - r},{a + r}{ends[1]}"
    distance = f"|x-{a}|" if a > 0 else f"|x+{-a}|"
    same = [
        rf"{distance} {less} {r}",
        rf"|{a}-x| {less} {r}",
        rf"{r} {more} \left|x-({a})\right|",
        rf"|2x-({2 * a})| {less} {2 * r}",
        f"{a - r} {less} x {less} {a + r}",
    ]
    other = [
        rf"{distance} {more} {r}",
        rf"{distance} {less} {r + 1}",
        rf"|x+({a})| {less} {r}",
        rf"|2x-({a})| {less} {r}",
        f"{distance} {otherwise} {r}",
        f"|x| {less} {r}",
    ]
    return Pairs(inside, same, other)


@answer_class("inequality in several letters")
def _plane(rng: random.Random) -> Pairs:
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 20)
    gold = rf"{a}x+{b}y\le {c}"
    same = [
        rf"{c}\ge {a}x+{b}y",
        rf"{a}x\le {c}-{b}y",
        rf"{2 * a}x+{2 * b}y\leq {2 * c}",
        rf"{a}x+{b}y-{c}\le 0",
        rf"-{a}x-{b}y\ge -{c}",
        f"{b}y + {a}x <= {c}",
    ]
    other = [
        rf"{a}x+{b}y\ge {c}",
        f"{a}x+{b}y<{c}",
        rf"{a}x-{b}y\le {c}",
        rf"{a}x+{b}y\le {c + 1}",
        rf"{a}x+{b}y={c}",
        rf"-{a}x-{b}y\le -{c}",
    ]
    return Pairs(gold, same, other)


def _matrix(cells: list[list[object]], name: str = "pmatrix") -> str:
    return rf"\begin{{{name}}}" + r" \\ ".join(" & ".join(map(str, row)) for row in cells) + rf"\end{{{name}}}"


@answer_class("matrix")
def _matrices(rng: random.Random) -> Pairs:
    rows, columns = rng.choice([(2, 2), (2, 2), (3, 1), (1, 3), (2, 3)])
    cells: list[list[object]] = [[signed(rng, 1, 15) for _ in range(columns)] for _ in range(rows)]
    i, j = rng.randrange(rows), rng.randrange(columns)
    first = cells[i][j]
    assert isinstance(first, int)

    def changed(text: object) -> list[list[object]]:
        return [[text if (r, c) == (i, j) else cell for c, cell in enumerate(row)] for r, row in enumerate(cells)]

    same = [
        _matrix(cells, "bmatrix"),
        _matrix(changed(rf"\frac{{{3 * first}}}{{3}}")),
        _matrix(changed(f"{first}.0"), "Bmatrix"),
        rf"A={_matrix(cells)}",
    ]
    same += [
        _matrix(cells).replace(" & ", "&").replace(r" \\ ", r"\\"),
        rf"\left({_matrix(cells, 'matrix')}\right)",
        _matrix(cells).replace(r" \\ ", r" \\[2pt] "),
    ]
    transposed: list[list[object]] = [list(column) for column in zip(*cells, strict=True)]
    other = [
        _matrix(changed(first + 1)),
        _matrix(changed(-first)),
        _matrix([*cells, cells[0]]),
        str(first),
        _matrix(changed(10 * first)),
        f"2{_matrix(cells)}",
    ]
    other += [_matrix(transposed)] if transposed != cells else []
    return Pairs(_matrix(cells), same, other)


@answer_class("determinant")
def _determinant(rng: random.Random) -> Pairs:
    a, b, c, d = (signed(rng, 1, 12) for _ in range(4))
    value = a * d - b * c
    printed = _matrix([[a, b], [c, d]], "vmatrix")
    gold = rng.choice([str(value), printed])
    same = [
        str(value),
        printed,
        f"{value}.0",
        rf"{a * d}{-b * c:+d}",
        _matrix([[a, c], [b, d]], "vmatrix"),
        rf"x={value}",
    ]
    other = [str(value + 1), _matrix([[a, b], [c, d + 1]], "vmatrix"), _matrix([[a, b], [c, d]]), str(10 * value + 7)]
    other += [str(-value), _matrix([[c, d], [a, b]], "vmatrix")] if value else []
    return Pairs(gold, same, other)


@answer_class("several assignments")
def _assignments(rng: random.Random) -> Pairs:
    a, b = rng.sample(range(-20, 21), 2)
    gold = f"x={a}, y={b}"
    same = [
        f"y={b}, x={a}",
        rf"x={a} \text{{ and }} y={b}",
        f"(x,y)=({a},{b})",
        f"({a},{b})",
        f"x = {a},\\ y = {b}",
        f"x={a}; y={b}",
        rf"x=\frac{{{2 * a}}}{{2}}, y={b}",
    ]
    other = [
        f"x={b}, y={a}",
        f"x={a}, y={b + 1}",
        f"x={a}",
        f"({b},{a})",
        f"y={a}, x={b}",
        f"x={a}, z={b}",
        f"x={a + 1}, y={b}",
    ]
    return Pairs(gold, same, other)


_NAMES = "Evelyn Navin Alice Robert Carla Tomas Priya Wendy Oscar Fatima Helena Igor"
_TERMS = "ellipse parabola hyperbola circle even odd east west north south increasing decreasing"


@answer_class("word")
def _word(rng: random.Random) -> Pairs:
    first, second = rng.sample(rng.choice([_NAMES, _TERMS]).split(), 2)
    same = [
        first,
        rf"\text{{{first}}}",
        rf"\textbf{{{first}}}",
        first.upper(),
        first.lower(),
        rf"\text{{ {first} }}",
        f"{first}.",
        rf"\mathrm{{{first}}}",
    ]
    other = [
        second,
        rf"\text{{{second}}}",
        rf"\text{{not {first}}}",
        f"{first} and {second}",
        first[::-1],
        first[:-1],
        "5",
        rf"\text{{{first}}} + 1",
    ]
    return Pairs(rng.choice([first.capitalize(), rf"\text{{{first}}}"]), same, other)


@answer_class("choice")
def _choice(rng: random.Random) -> Pairs:
    first, second = rng.sample("ABCDE", 2)
    same = [
        first,
        f"({first})",
        rf"\text{{{first}}}",
        rf"\textbf{{({first})}}",
        rf"\mathrm{{({first})}}",
        first.lower(),
        f"Choice {first}",
        f"{first}.",
    ]
    other = [
        second,
        rf"\text{{({second})}}",
        f"({second})",
        f"{first}{second}",
        "1",
        rf"\text{{not ({first})}}",
        f"{first},{second}",
    ]
    return Pairs(rf"\text{{({first})}}", same, other)


@answer_class("congruence")
def _congruence(rng: random.Random) -> Pairs:
    n = rng.randint(3, 40)
    a = rng.randint(1, n - 1)
    gold = rf"x\equiv {a} \pmod{{{n}}}"
    same = [rf"{a} \pmod{{{n}}}", rf"x \equiv {a} \pmod {{{n}}}", rf"{a} \bmod {n}", str(a), rf"x\equiv {a}\mod {n}"]
    other = [
        rf"x\equiv {a + 1} \pmod{{{n}}}",
        rf"x\equiv {a} \pmod{{{n + 1}}}",
        str(a + 1),
        rf"-{a} \pmod{{{n}}}",
        str(n),
    ]
    return Pairs(gold, same, [text for text in other if str(a) != text])


@answer_class("expression with two sums")
def _products(rng: random.Random) -> Pairs:
    a, b, c, d = (signed(rng, 1, 9) for _ in range(4))
    gold = f"({total((a, 'x'), (b, ''))})({total((c, 'x'), (d, ''))})"
    same = [
        total((a * c, "x^2"), (a * d + b * c, "x"), (b * d, "")),
        f"({total((c, 'x'), (d, ''))})({total((b, ''), (a, 'x'))})",
        rf"({total((a, 'x'), (b, ''))})\cdot({total((c, 'x'), (d, ''))})",
    ]
    other = [
        total((a * c, "x^2"), (a * d + b * c + 1, "x"), (b * d, "")),
        total((a * c, "x^2"), (b * d, "")) if a * d + b * c else "x",
        f"-{gold}",
        f"{gold}+1",
    ]
    return Pairs(gold, same, other)
