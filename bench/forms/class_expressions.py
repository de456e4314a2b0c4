r"""Generated classes of expressions and equations: polynomials, names with subscripts, formulas, identities."""

from __future__ import annotations

import random

from bench.forms.generated import Pairs, answer_class, signed, total


def _letter(rng: random.Random) -> str:
    return rng.choice(list("xyzabtmnrs"))


@answer_class("polynomial in one letter")
def _polynomial(rng: random.Random) -> Pairs:
    x = _letter(rng)
    a, b, c = signed(rng, 2, 9), signed(rng, 1, 20), signed(rng, 1, 30)
    gold = total((a, f"{x}^2"), (b, x), (c, ""))
    same = [
        total((c, ""), (b, x), (a, f"{x}^2")),
        total((b, x), (a, f"{x}^{{2}}"), (c, "")),
        f"y = {gold}",
        f"({gold})",
    ]
    same += [
        f"{a}*{x}^2{b:+d}*{x}{c:+d}",
        f"{x}({total((a, x), (b, ''))}){c:+d}",
        rf"\frac{{2({gold})}}{{2}}",
        f"{gold}+1-1",
    ]
    same += [rf"{a}{x}\cdot {x}{b:+d}{x}{c:+d}", f"f({x})={gold}", f"-(-({gold}))"]
    other = [
        total((a, f"{x}^2"), (b, x), (c + 1, "")),
        total((a, f"{x}^2"), (-b, x), (c, "")),
        total((a, f"{x}^3"), (b, x), (c, "")),
    ]
    other += [
        f"-({gold})",
        total((a, "w^2"), (b, "w"), (c, "")),
        total((a, f"{x.upper()}^2"), (b, x), (c, "")),
        f"2({gold})",
    ]
    return Pairs(gold, same, [*other, total((a + 1, f"{x}^2"), (b, x), (c, "")), f"{gold}>0", total((b, x), (c, ""))])


@answer_class("polynomial in several letters")
def _several_letters(rng: random.Random) -> Pairs:
    x, y = rng.sample(list("xyzabmnpq"), 2)
    a, b, c = rng.randint(2, 9), signed(rng, 2, 9), signed(rng, 1, 9)
    gold = total((a, f"{x}^2{y}"), (b, f"{x}{y}"), (c, y))
    same = [
        total((a, f"{y}{x}^2"), (c, y), (b, f"{y}{x}")),
        f"{y}({total((a, f'{x}^2'), (b, x), (c, ''))})",
        f"{a}{x}^2*{y}{b:+d}{x}{y}{c:+d}{y}",
    ]
    same += [
        f"{x}{y}({total((a, x), (b, ''))}){c:+d}{y}",
        rf"\left({gold}\right)",
        f"{gold}+0",
        rf"{a} {x}^{{2}} {y}{b:+d} {x} {y}{c:+d} {y}",
    ]
    other = [
        total((a, f"{x}{y}^2"), (b, f"{x}{y}"), (c, y)),
        total((a, f"{x}^2{y}"), (b, f"{x}{y}"), (c, x)),
        f"-({gold})",
    ]
    return Pairs(gold, same, [*other, total((a, f"{x}^2{y}"), (b + 10, f"{x}{y}"), (c, y)), f"{gold}+1", f"{gold}{x}"])


@answer_class("factored expression")
def _factored(rng: random.Random) -> Pairs:
    x = _letter(rng)
    p, q = rng.sample([n for n in range(-9, 10) if n], 2)
    gold = f"({x}{p:+d})({x}{q:+d})"
    same = [
        f"({x}{q:+d})({x}{p:+d})",
        total((1, f"{x}^2"), (p + q, x), (p * q, "")),
        rf"({x}{p:+d})\cdot({x}{q:+d})",
        f"({p}+{x})({q}+{x})",
    ]
    same += [
        rf"\left({x}{p:+d}\right)\left({x}{q:+d}\right)",
        f"(-{x}{-p:+d})(-{x}{-q:+d})",
        f"({x}{p:+d})*({x}{q:+d})",
    ]
    other = [
        f"({x}{p:+d})({x}{-q:+d})",
        f"({x}{p + 1:+d})({x}{q:+d})",
        f"-({x}{p:+d})({x}{q:+d})",
        f"({x}{p:+d})",
        f"({x}{p:+d})({x}{q:+d})^2",
    ]
    other = [text for text in other if p + q or "(-" not in text]
    return Pairs(gold, same, [*other, f"({x}{p:+d})+({x}{q:+d})", f"{x}^2{p * q:+d}" if p + q else f"{x}^2"])


@answer_class("rational function")
def _rational(rng: random.Random) -> Pairs:
    x = _letter(rng)
    a, b, c = rng.randint(2, 9), signed(rng, 1, 9), signed(rng, 10, 19)
    gold = rf"\frac{{{a}{x}{b:+d}}}{{{x}{c:+d}}}"
    same = [
        f"({a}{x}{b:+d})/({x}{c:+d})",
        rf"\dfrac{{{b}+{a}{x}}}{{{c}+{x}}}",
        rf"{a}+\frac{{{b - a * c}}}{{{x}{c:+d}}}",
        rf"\frac{{-{a}{x}{-b:+d}}}{{-{x}{-c:+d}}}",
    ]
    same += [
        rf"\frac{{{2 * a}{x}{2 * b:+d}}}{{2{x}{2 * c:+d}}}",
        rf"({a}{x}{b:+d})({x}{c:+d})^{{-1}}",
        rf"\frac{{{a}{x}}}{{{x}{c:+d}}}+\frac{{{b}}}{{{x}{c:+d}}}",
    ]
    other = [
        rf"\frac{{{a}{x}{b:+d}}}{{{x}{-c:+d}}}",
        rf"\frac{{{x}{c:+d}}}{{{a}{x}{b:+d}}}",
        rf"-{gold}",
        f"{a}{x}{b:+d}/{x}{c:+d}",
        rf"{gold}+1",
    ]
    return Pairs(gold, same, [*other, rf"\frac{{{a}{x}{-b:+d}}}{{{x}{c:+d}}}", rf"\frac{{{a}}}{{{x}{c:+d}}}"])


@answer_class("names with subscripts")
def _subscripts(rng: random.Random) -> Pairs:
    name = rng.choice(list("IEeRVTvmxkaFP"))
    i, j = rng.sample(range(0, 10), 2)
    a = rng.randint(2, 9)
    gold = rng.choice([f"{name}_{i}", f"{a}{name}_{i}", rf"\frac{{{a}{name}_{i}}}{{R}}", f"{name}_{i}^2+{a}"])
    first, wrong = f"{name}_{i}", f"{name}_{j}"
    same = [
        gold.replace(first, f"{name}_{{{i}}}"),
        gold.replace(first, f"{name}_{{ {i} }}"),
        gold.replace(first, rf"{{{name}}}_{{{i}}}"),
    ]
    same += [f"1 \\cdot {gold}", f"({gold})", gold.replace(first, rf"{name} _ {{{i}}}")]
    other = [
        gold.replace(first, wrong),
        gold.replace(first, name),
        gold.replace(first, f"{name}_{{{i}{j}}}"),
        f"2{gold}",
        f"{gold}+1",
        f"-{gold}",
    ]
    other += [gold.replace(first, f"{'J' if name != 'J' else 'K'}_{i}"), gold.replace(first, str(i))]
    return Pairs(gold, same, other)


@answer_class("names in words")
def _named(rng: random.Random) -> Pairs:
    first, second = rng.sample(["MR", "MC", "AB", "PQ", "max", "eff", "total", "SA", "CV", "NPV", "IRR", "BC"], 2)
    a = rng.randint(2, 9)
    gold = rng.choice(
        [rf"\text{{{first}}}", rf"{a}\text{{{first}}}+v_{{\text{{max}}}}", rf"\frac{{{a}}}{{\text{{{first}}}}}"]
    )
    if gold == rf"\text{{{first}}}":
        same = [first, rf"\mathrm{{{first}}}", rf"\text {{ {first} }}", rf"\mbox{{{first}}}", rf"\textbf{{{first}}}"]
    else:
        same = [
            gold.replace("text", "mathrm"),
            gold.replace(r"\text{", r"\text {"),
            gold.replace(rf"\text{{{first}}}", rf"\operatorname{{{first}}}"),
        ]
        same += [gold.replace(rf"\text{{{first}}}", first)] if first.isupper() else []
    other = [
        gold.replace(first, second),
        gold.replace(first, first[::-1]) if first[::-1] != first else "0",
        f"{gold}+1",
        f"2{gold}",
        "0",
        str(a),
    ]
    return Pairs(gold, same, other)


_FORMULAS = [
    (
        "I(0)e^{-\\frac{t}{RC}}",
        [
            "I(0) e^{-t/RC}",
            "I(0)\\exp\\left(-\\frac{t}{RC}\\right)",
            "\\frac{I(0)}{e^{t/(RC)}}",
            "e^{-\\frac{t}{RC}} I(0)",
        ],
        [
            "I(0)e^{\\frac{t}{RC}}",
            "I e^{-\\frac{t}{RC}}",
            "I(0)e^{-\\frac{tR}{C}}",
            "I(0)e^{-\\frac{t}{2RC}}",
            "I(1)e^{-\\frac{t}{RC}}",
        ],
    ),
    (
        "\\sqrt{2gh}",
        ["(2gh)^{1/2}", "\\sqrt{2}\\sqrt{gh}", "\\sqrt{2 g h}", "v = \\sqrt{2gh}", "\\left(2gh\\right)^{\\frac12}"],
        ["\\sqrt{gh}", "2gh", "\\sqrt{2g}h", "2\\sqrt{gh}", "\\sqrt{2gH}", "\\sqrt{\\frac{2h}{g}}"],
    ),
    (
        "\\frac{1}{2}mv^2",
        ["\\frac{mv^2}{2}", "0.5mv^2", "mv^2/2", "E = \\frac12 m v^{2}", "\\frac{1}{2} m\\cdot v^2"],
        ["mv^2", "\\frac{1}{2}mv", "\\frac{1}{2}m^2v", "\\frac12 Mv^2", "-\\frac12 mv^2"],
    ),
    (
        "\\frac{m_1 m_2}{m_1+m_2}",
        [
            "\\frac{m_{2} m_{1}}{m_{2}+m_{1}}",
            "\\left(\\frac1{m_1}+\\frac1{m_2}\\right)^{-1}",
            "\\mu=\\frac{m_1m_2}{m_1+m_2}",
            "m_1m_2/(m_1+m_2)",
        ],
        [
            "\\frac{m_1+m_2}{m_1m_2}",
            "\\frac{m_1 m_2}{m_1-m_2}",
            "\\frac{m_1}{m_1+m_2}",
            "\\frac{m_1m_3}{m_1+m_3}",
            "\\frac{m_1^2}{m_1+m_1}",
        ],
    ),
    (
        "x_0\\cos(\\omega t)+\\frac{\\dot{x}_0}{\\omega}\\sin(\\omega t)",
        [
            "x_{0} \\cos (\\omega t)+\\dot{x}_{0} \\sin (\\omega t) / \\omega",
            "\\frac{\\dot{x}_0\\sin\\omega t}{\\omega}+x_0\\cos \\omega t",
        ],
        [
            "x_0\\sin(\\omega t)+\\frac{\\dot{x}_0}{\\omega}\\cos(\\omega t)",
            "x_0\\cos(\\omega t)-\\frac{\\dot{x}_0}{\\omega}\\sin(\\omega t)",
            "x_0\\cos(\\omega t)+\\frac{x_0}{\\omega}\\sin(\\omega t)",
        ],
    ),
    (
        "\\frac{GMm}{r^2}",
        ["GMm/r^2", "G\\frac{mM}{r^{2}}", "GMmr^{-2}", "F=\\frac{G M m}{r^2}"],
        ["\\frac{GMm}{r}", "\\frac{Gm^2}{r^2}", "\\frac{GM}{r^2}", "-\\frac{GMm}{r^2}", "\\frac{GMm}{R^2}"],
    ),
    (
        "\\lambda e^{-\\lambda x}",
        [
            "\\lambda\\exp(-\\lambda x)",
            "\\frac{\\lambda}{e^{\\lambda x}}",
            "f(x)=\\lambda e^{-\\lambda x}",
            "e^{-\\lambda x}\\lambda",
        ],
        [
            "e^{-\\lambda x}",
            "\\lambda e^{\\lambda x}",
            "\\mu e^{-\\mu x}",
            "\\lambda e^{-x}",
            "-\\lambda e^{-\\lambda x}",
        ],
    ),
    (
        "\\frac{\\alpha+\\beta}{2}",
        [
            "\\frac{\\alpha}{2}+\\frac{\\beta}{2}",
            "(\\alpha+\\beta)/2",
            "\\frac12(\\beta+\\alpha)",
            "0.5(\\alpha+\\beta)",
        ],
        ["\\frac{\\alpha-\\beta}{2}", "\\alpha+\\frac{\\beta}{2}", "\\frac{\\alpha+\\gamma}{2}", "\\alpha\\beta/2"],
    ),
]


@answer_class("formula")
def _formula(rng: random.Random) -> Pairs:
    gold, same, other = rng.choice(_FORMULAS)
    factor = rng.randint(2, 40)
    scaled = [rf"{factor}\left({text.split('=', 1)[-1]}\right)" for text in (gold, *same)]
    wrong = [rf"{factor}\left({text}\right)" for text in other] + [rf"{factor + 1}\left({gold}\right)", gold]
    return Pairs(scaled[0], [*scaled[1:], rf"\left({gold}\right)\cdot {factor}"], wrong)


@answer_class("trigonometric identity")
def _identity(rng: random.Random) -> Pairs:
    a, k = rng.randint(2, 9), rng.randint(1, 5)
    x = rng.choice(["x", r"\theta", "t", r"\alpha"])
    angle = x if k == 1 else f"{k}{x}"
    gold = rf"{a}\sin {2 * k}{x}"
    same = [
        rf"{2 * a}\sin({angle})\cos({angle})",
        rf"{a}\sin({2 * k}{x})",
        rf"{a}\cos\left(\frac{{\pi}}{{2}}-{2 * k}{x}\right)",
        rf"\frac{{{a}}}{{\csc({2 * k}{x})}}",
    ]
    same += [rf"{2 * a}\tan({angle})\cos^2({angle})", rf"{a} \sin\left({2 * k}{x}\right)", rf"-{a}\sin(-{2 * k}{x})"]
    other = [
        rf"{a}\cos {2 * k}{x}",
        rf"{a}\sin {2 * k + 1}{x}",
        rf"{a}\sin^2 {2 * k}{x}",
        rf"-{gold}",
        rf"{2 * a}\sin({angle})",
        rf"{a}\sin({angle})\cos({angle})",
    ]
    return Pairs(gold, same, [*other, rf"{a + 1}\sin {2 * k}{x}", rf"{a}\sin({2 * k})"])


@answer_class("logarithm of names")
def _logarithm_names(rng: random.Random) -> Pairs:
    x, y = rng.sample(["x", "y", "a", "b", "n"], 2)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    gold = rf"{a}\ln {x}+{b}\ln {y}"
    same = [
        rf"\ln({x}^{a}{y}^{b})",
        rf"{b}\ln({y})+{a}\ln({x})",
        rf"\ln {x}^{a}+\ln {y}^{b}",
        rf"{a}\ln\left({x}\right)-{b}\ln\frac{{1}}{{{y}}}",
        rf"{a}\log {x}+{b}\log {y}",
    ]
    other = [
        rf"\ln({a}{x}+{b}{y})",
        rf"{a}\ln {y}+{b}\ln {x}" if a != b else "0",
        rf"{a}\ln {x}-{b}\ln {y}",
        rf"\ln({x}^{a}+{y}^{b})",
        rf"{a + b}\ln({x}{y})",
    ]
    return Pairs(gold, same, [*other, rf"{a}\ln {x}\cdot{b}\ln {y}", rf"{gold}+1"])


@answer_class("absolute value")
def _absolute(rng: random.Random) -> Pairs:
    x, a = _letter(rng), rng.randint(1, 20)
    gold = f"|{x}-{a}|"
    same = [f"|{a}-{x}|", rf"\left|{x}-{a}\right|", rf"\lvert {x}-{a}\rvert", rf"\sqrt{{({x}-{a})^2}}", f"|{x} - {a}|"]
    other = [f"{x}-{a}", f"|{x}+{a}|", f"-|{x}-{a}|", f"{a}-{x}", f"|{x}|-{a}", f"|{x}-{a + 1}|", f"|{x}-{a}|+1"]
    return Pairs(gold, same, other)


@answer_class("sequence term")
def _sequence_term(rng: random.Random) -> Pairs:
    a, d = rng.randint(2, 9), rng.randint(2, 9)
    gold = rf"{a}\cdot {d}^{{n-1}}"
    same = [
        rf"\frac{{{a}\cdot {d}^n}}{{{d}}}",
        rf"{a}({d})^{{n-1}}",
        rf"a_n={a}\cdot {d}^{{n-1}}",
        rf"\frac{{{a}}}{{{d}}}\cdot {d}^{{n}}",
        rf"{a} \times {d}^{{n - 1}}",
        rf"{a}*{d}^(n-1)",
    ]
    other = [
        rf"{a}\cdot {d}^n",
        rf"{a}\cdot {d}^{{n+1}}",
        rf"{a + 1}\cdot {d}^{{n-1}}",
        rf"{a}+{d}(n-1)",
        rf"{a}\cdot {d}^{{m-1}}",
        rf"{a}\cdot {d}^{{n}}-1",
    ]
    return Pairs(gold, same, [*other, rf"{a * d}^{{n-1}}", rf"-{a}\cdot {d}^{{n-1}}"])


@answer_class("linear equation")
def _line(rng: random.Random) -> Pairs:
    m, b = signed(rng, 2, 9), signed(rng, 1, 12)
    gold = f"y={m}x{b:+d}"
    same = [
        f"{m}x-y{b:+d}=0",
        f"y{-m:+d}x={b}",
        f"{m}x{b:+d}=y",
        f"2y={2 * m}x{2 * b:+d}",
        f"y = {b} + {m}x" if m > 0 else f"y={b}{m}x",
        f"-y={-m}x{-b:+d}",
    ]
    same += [rf"\frac{{y{-b:+d}}}{{{m}}}=x", f"{m}x{b:+d}", f"0={m}x{b:+d}-y", f"y{-b:+d} = {m}x"]
    other = [
        f"y={m}x{-b:+d}",
        f"y={-m}x{b:+d}",
        f"y={m + 1}x{b:+d}",
        f"x={m}y{b:+d}",
        f"y={m}x",
        f"{m}x+y{b:+d}=0",
        f"{m}x{b + 1:+d}",
    ]
    return Pairs(gold, same, [text for text in other if not (abs(m) == 1 and text.startswith("x"))])


@answer_class("equation of a curve")
def _curve(rng: random.Random) -> Pairs:
    h, k, r = signed(rng, 1, 9), signed(rng, 1, 9), rng.randint(2, 12)
    gold = f"(x{-h:+d})^2+(y{-k:+d})^2={r * r}"
    d, e, f = -2 * h, -2 * k, h * h + k * k - r * r
    same = [
        f"x^2+y^2{d:+d}x{e:+d}y{f:+d}=0",
        f"(y{-k:+d})^2+(x{-h:+d})^2={r}^2",
        f"{r * r}=(x{-h:+d})^2+(y{-k:+d})^2",
        f"(x{-h:+d})^2={r * r}-(y{-k:+d})^2",
    ]
    same += [
        rf"\frac{{(x{-h:+d})^2}}{{{r * r}}}+\frac{{(y{-k:+d})^2}}{{{r * r}}}=1",
        f"x^2{d:+d}x+y^2{e:+d}y={-f}",
        rf"2(x{-h:+d})^{{2}}+2(y{-k:+d})^{{2}}={2 * r * r}",
    ]
    other = [
        f"(x{h:+d})^2+(y{-k:+d})^2={r * r}",
        f"(x{-h:+d})^2+(y{-k:+d})^2={r}",
        f"(x{-h:+d})^2-(y{-k:+d})^2={r * r}",
        f"x^2+y^2={r * r}",
        f"(x{-h:+d})^2+(y{-k:+d})^2={r * r + 1}",
    ]
    return Pairs(gold, same, [*other, f"(x{-k:+d})^2+(y{-h:+d})^2={r * r}" if h != k else "0=1", str(r * r)])


@answer_class("differential equation")
def _differential(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    gold = f"y''+{a}y'+{b}y=0"
    same = [
        f"y''=-{a}y'-{b}y",
        f"y'' + {a} y' = -{b} y",
        rf"\frac{{d^2y}}{{dx^2}}+{a}\frac{{dy}}{{dx}}+{b}y=0",
        f"0=y''+{a}y'+{b}y",
        f"y''(t)+{a}y'(t)+{b}y(t)=0",
        rf"y^{{\prime\prime}}+{a}y^{{\prime}}+{b}y=0",
    ]
    same += [f"2y''+{2 * a}y'+{2 * b}y=0", rf"\ddot{{y}}+{a}\dot{{y}}+{b}y=0", f"{b}y+{a}y'+y''=0"]
    other = [
        f"y''-{a}y'+{b}y=0",
        f"y''+{a}y'-{b}y=0",
        f"y''+{b}y'+{a}y=0" if a != b else "0=1",
        f"y'+{a}y+{b}=0",
        f"y''+{a}y'+{b}y=1",
        f"y''+{a + 1}y'+{b}y=0",
    ]
    return Pairs(gold, same, [*other, f"y'''+{a}y''+{b}y'=0", f"y''+{a}y+{b}y=0"])


@answer_class("derivative equation of first order")
def _first_order(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    gold = rf"\frac{{dy}}{{dt}}={a}y-{b}t"
    same = [
        rf"{a}y-{b}t=\frac{{dy}}{{dt}}",
        rf"\frac{{dy}}{{dt}}-{a}y=-{b}t",
        rf"\frac{{dy}}{{dt}}-{a}y+{b}t=0",
        rf"y'={a}y-{b}t",
        rf"\frac{{dy}}{{dt}} = -{b}t + {a}y",
        rf"2\frac{{dy}}{{dt}}={2 * a}y-{2 * b}t",
    ]
    same += [rf"\dot{{y}}={a}y-{b}t", rf"\frac{{d y}}{{d t}}={a} y-{b} t"]
    other = [
        rf"\frac{{dy}}{{dt}}={a}y+{b}t",
        rf"\frac{{dy}}{{dt}}={b}y-{a}t" if a != b else "0=1",
        rf"\frac{{dy}}{{dt}}={a}y",
        rf"\frac{{d^2y}}{{dt^2}}={a}y-{b}t",
        rf"\frac{{dy}}{{dt}}={a + 1}y-{b}t",
    ]
    return Pairs(gold, same, [*other, rf"-\frac{{dy}}{{dt}}={a}y-{b}t", rf"{a}y-{b}t=1"])


@answer_class("equation with denominators")
def _denominators(rng: random.Random) -> Pairs:
    a, b, c = rng.randint(2, 20), rng.randint(1, 20), rng.randint(2, 9)
    x, y = rng.choice([("x", "y"), ("p", "V"), ("s", "t")])
    gold = f"{y}={a}/({x}+{b})"
    same = [
        rf"{y}=\frac{{{a}}}{{{x}+{b}}}",
        f"{y}({x}+{b})={a}",
        f"{x}{y}+{b}{y}={a}",
        rf"\frac{{{a}}}{{{y}}}={x}+{b}",
        rf"{x}=\frac{{{a}}}{{{y}}}-{b}",
        rf"{c}{y}=\frac{{{a * c}}}{{{x}+{b}}}",
    ]
    other = [
        rf"{y}=\frac{{{a}}}{{{x}-{b}}}",
        f"{y}({x}+{b})=-{a}",
        f"{x}{y}+{b + 1}{y}={a}",
        rf"\frac{{{a}}}{{{x}}}={y}+{b}",
        rf"{y}=\frac{{{x}+{b}}}{{{a}}}",
        rf"{c}{y}=\frac{{{a}}}{{{x}+{b}}}",
    ]
    return Pairs(gold, same, other)


@answer_class("labelled value")
def _labelled(rng: random.Random) -> Pairs:
    n, name = rng.randint(2, 500), rng.choice(["x", "n", "k", "N", "f(2)", "S_{10}", "a_5", "P(3)", r"\lambda", "AB"])
    gold = f"{name}={n}"
    same = [
        str(n),
        f"{name} = {n}",
        f"{name}={n}.0",
        f"{n}={name}" if len(name) == 1 else str(n),
        rf"{name}=\frac{{{2 * n}}}{{2}}",
        f"{name}={n - 1}+1={n}",
    ]
    other = [
        f"{name}={n + 1}",
        f"{name}=-{n}",
        str(n - 1),
        f"{name}>{n}",
        rf"{name}\ne {n}",
        f"w={n}",
        f"{name}={n},{n + 1}",
    ]
    return Pairs(gold, same, other)
