r"""Generated classes of answers whose words or letters do not change, or do change, what the value means.

Indices of sums and integrals, temperatures, quotients of units, amounts in two units, opposites, signs in words,
remainders, words around a value.
"""

from __future__ import annotations

import random

from bench.forms.generated import Pairs, answer_class

_OPPOSITES = (
    ("increase", "decrease"),
    ("gain", "loss"),
    ("north", "south"),
    ("east", "west"),
    ("to the left", "to the right"),
    ("clockwise", "counterclockwise"),
    ("above", "below"),
)
_QUOTIENTS = (("J", "g", "K", "kJ"), ("W", "m", "K", "kW"), ("N", "kg", "s", "mN"), ("kg", "m", "s", "g"))


@answer_class("index of a sum")
def _index(rng: random.Random) -> Pairs:
    first, second, third = rng.sample("ijkpq", 3)
    scale, power = rng.randint(2, 9), rng.randint(2, 5)

    def total(name: str, start: int = 1, top: str = "n", power: int = power) -> str:
        return rf"\sum_{{{name}={start}}}^{{{top}}} {scale}{name}^{power}"

    same = [total(second), total(third), rf"\sum\limits_{{{second} = 1}}^n {scale}{second}^{{{power}}}"]
    other = [
        total(second, start=2),
        total(second, top="n-1"),
        total(second, power=power + 1),
        total(second).replace(f"{scale}{second}", f"{scale}n"),
        total(second).replace(f"{scale}{second}", f"{scale + 1}{second}"),
        total(second).replace("sum", "prod"),
    ]
    return Pairs(total(first), same, other)


@answer_class("variable of an integral")
def _variable(rng: random.Random) -> Pairs:
    first, second, third = rng.sample("tuvw", 3)
    top, scale = rng.randint(2, 9), rng.randint(2, 9)

    def integral(name: str, top: int = top, scale: int = scale) -> str:
        return rf"\int_0^{{{top}}} f({scale}{name})\,d{name}"

    same = [integral(second), integral(third), integral(second).replace(r"\,d", " d")]
    other = [
        integral(second, top=top + 1),
        integral(second, scale=scale + 1),
        integral(second).replace("f(", "g("),
        integral(second).replace(f"d{second}", f"d{third}"),
        rf"-{integral(second)}",
    ]
    return Pairs(integral(first), same, other)


@answer_class("temperature")
def _temperature(rng: random.Random) -> Pairs:
    value, (scale, wrong) = rng.randint(2, 99), rng.choice([("C", "F"), ("F", "C")])
    name = {"C": "Celsius", "F": "Fahrenheit"}
    same = [
        rf"{value}^\circ \text{{{scale}}}",
        rf"{value}\,^\circ\mathrm{{{scale}}}",
        f"{value}°{scale}",
        rf"{value} \text{{ degrees {name[scale]}}}",
        rf"{value}\text{{ {scale}}}",
        f"{value} degrees {scale}",
        rf"{value}^\circ",
        str(value),
    ]
    other = [
        rf"{value}^\circ {wrong}",
        f"{value}°{wrong}",
        rf"{value}\text{{ degrees {name[wrong]}}}",
        rf"{value}\text{{ K}}",
        rf"{value + 1}^\circ {scale}",
        rf"-{value}^\circ {scale}",
    ]
    return Pairs(rf"{value}^\circ {scale}", same, other)


@answer_class("quotient of units")
def _quotient(rng: random.Random) -> Pairs:
    top, first, second, wrong = rng.choice(_QUOTIENTS)
    value = f"{rng.randint(1, 90)}.{rng.randint(1, 9)}"
    same = [
        rf"{value}\text{{ {top}/({first}·{second})}}",
        rf"{value} \frac{{\text{{{top}}}}}{{\text{{{first}}}\cdot\text{{{second}}}}}",
        rf"{value}\ \mathrm{{{top}\,{first}^{{-1}}\,{second}^{{-1}}}}",
        f"{value} {top}/({first} {second})",
        rf"{value}\text{{ {top}/({second}·{first})}}",
        value,
    ]
    other = [
        rf"{value}\text{{ {wrong}/({first}·{second})}}",
        rf"{value}\text{{ {top}/{first}}}",
        rf"{value}\text{{ {top}·{first}/{second}}}",
        rf"{value}\text{{ {first}/({top}·{second})}}",
        rf"{value}5\text{{ {top}/({first}·{second})}}",
    ]
    return Pairs(rf"{value}\text{{ {top}/({first}}}\cdot\text{{{second})}}", same, other)


@answer_class("amount in one of two units")
def _one_unit(rng: random.Random) -> Pairs:
    large, small, size = rng.choice([("hours", "minutes", 60), ("minutes", "seconds", 60), ("feet", "inches", 12)])
    whole, part = rng.randint(1, 11), rng.randint(1, size - 1)
    total = whole * size + part
    same = [
        rf"{total}\text{{ {small}}}",
        rf"\frac{{{total}}}{{{size}}}\text{{ {large}}}",
        rf"{whole}\frac{{{part}}}{{{size}}}\text{{ {large}}}",
        f"{whole} {large} {part} {small}",
    ]
    other = [
        rf"{total + 1}\text{{ {small}}}",
        rf"{whole}.{part:02d}\text{{ {small}}}",
        rf"{total}\text{{ {large}}}",
        rf"{whole}\frac{{{part}}}{{{size + 1}}}\text{{ {large}}}",
        rf"{whole + 1}\text{{ {large} {part} {small}}}",
        rf"{whole}\text{{ {large}}}",
    ]
    return Pairs(rf"{whole}\text{{ {large} and }}{part}\text{{ {small}}}", same, other)


@answer_class("opposites")
def _opposite(rng: random.Random) -> Pairs:
    word, wrong = rng.choice([pair[::step] for pair in _OPPOSITES for step in (1, -1)])
    value = rng.randint(2, 98)
    amount = rf"{value}\%" if word in ("increase", "decrease", "gain", "loss") else rf"{value}\text{{ m}}"
    same = [rf"{amount} \text{{ {word}}}", f"{amount} {word}", amount]
    other = [
        rf"{amount}\text{{ {wrong}}}",
        rf"{amount} {wrong}",
        rf"\text{{{wrong} }}{amount}",
        amount.replace(str(value), str(value + 1)),
        rf"-{amount}\text{{ {word}}}",
    ]
    return Pairs(rf"{amount}\text{{ {word}}}", same, other)


@answer_class("sign in words")
def _sign(rng: random.Random) -> Pairs:
    number = rng.choice([str(rng.randint(1, 99)), rf"\frac{{{rng.randint(1, 9)}}}{{{rng.choice((11, 13, 17))}}}"])
    same = [
        f"negative {number}",
        rf"\text{{negative }}{number}",
        f"minus {number}",
        rf"\text{{Minus }} {number}",
        f"- {number}",
    ]
    other = [number, rf"\text{{positive }}{number}", f"negative -{number}", rf"\text{{not }} -{number}", f"-2{number}"]
    return Pairs(f"-{number}", same, other)


@answer_class("quotient and remainder")
def _remainder(rng: random.Random) -> Pairs:
    whole, rest = rng.randint(2, 99), rng.randint(1, 9)
    same = [
        rf"{whole}\text{{ R }}{rest}",
        f"{whole} R{rest}",
        f"{whole} r {rest}",
        f"{whole} remainder {rest}",
        rf"{whole}\text{{ remainder }}{rest}",
        rf"{whole}\text{{ with a remainder of }}{rest}",
    ]
    other = [f"{whole} R {rest + 1}", f"{whole + 1} R {rest}", f"{whole}{rest}", str(whole), str(whole * rest)]
    return Pairs(f"{whole} R {rest}", same, other)


@answer_class("words around a value")
def _around(rng: random.Random) -> Pairs:
    value = rng.randint(2, 98)
    same = [
        f"x={value} only",
        rf"{value}\text{{ only}}",
        f"only {value}",
        f"The answer is {value}",
        rf"\text{{Therefore, }}{value}",
        rf"\text{{increase of }}{value}",
        rf"\text{{approaches }}{value}",
    ]
    other = [
        f"{value + 1} only",
        rf"\text{{not only }}{value}",
        rf"\text{{not }}{value}",
        rf"\text{{at least }}{value}",
        rf"\text{{approaches }}-{value}",
        rf"{value}\text{{ or }}{value + 1}\text{{ only}}",
    ]
    return Pairs(str(value), same, other)


@answer_class("letters in an order")
def _ordered(rng: random.Random) -> Pairs:
    a, b, c, d = rng.sample("ABCDEFGH", 4)
    value = rng.randint(5, 170)
    gold, same, other = rng.choice(
        [
            (
                rf"\angle {a}{b}{c} = {value}^\circ",
                [rf"\angle {c}{b}{a} = {value}^\circ", rf"{value}^\circ", rf"\angle {b} = {value}^\circ"],
                [
                    rf"\angle {b}{a}{c} = {value}^\circ",
                    rf"\angle {a}{c}{b}={value}^\circ",
                    rf"\angle {a}{b}{c}=1^\circ",
                ],
            ),
            (
                rf"{a}^{{-1}}{b}{a}",
                [
                    rf"{a}^{{-1}} {b} {a}",
                    rf"\mathbf{{{a}}}^{{-1}}\mathbf{{{b}}}\mathbf{{{a}}}",
                    rf"{a}^{{-1}}\,{b}\,{a}",
                ],
                [b, rf"{a}{b}{a}^{{-1}}", rf"{a}^{{-1}}{a}{b}", rf"{a}^{{-1}}{d}{a}"],
            ),
            (
                rf"({a}{b})^{{-1}}",
                [rf"{b}^{{-1}}{a}^{{-1}}", rf"{d}={b}^{{-1}} {a}^{{-1}}", rf"({a} {b})^{{-1}}"],
                [rf"{a}^{{-1}}{b}^{{-1}}", rf"({b}{a})^{{-1}}", rf"{a}{b}", rf"({a}{b})^T"],
            ),
            (
                rf"{value}\vec{{u}}\times\vec{{v}}",
                [
                    rf"{value}\mathbf{{u}}\times\mathbf{{v}}",
                    rf"{value}\,\vec u \times \vec v",
                    rf"\frac{{{2 * value}}}{{2}}\vec u\times\vec v",
                ],
                [rf"{value}\vec{{v}}\times\vec{{u}}", rf"{value}\vec u\cdot\vec v", rf"{value + 1}\vec u\times\vec v"],
            ),
        ]
    )
    return Pairs(gold, same, other)


@answer_class("root of quantities")
def _quantities(rng: random.Random) -> Pairs:
    a, b, c = rng.sample("RmkELv", 3)
    n = rng.randint(2, 9)
    same = [
        rf"\sqrt{{\frac{{{n}{a}^2{b}}}{{{c}}}}}",
        rf"\frac{{{a}\sqrt{{{n}{b}{c}}}}}{{{c}}}",
        rf"{a}\left(\frac{{{n}{b}}}{{{c}}}\right)^{{1/2}}",
        rf"\sqrt{{{n}}}{a}\sqrt{{\frac{{{b}}}{{{c}}}}}",
    ]
    other = [
        rf"\sqrt{{\frac{{{n}{a}{b}}}{{{c}}}}}",
        rf"{a}\sqrt{{\frac{{{n}{c}}}{{{b}}}}}",
        rf"-{a}\sqrt{{\frac{{{n}{b}}}{{{c}}}}}",
        rf"\sqrt{{\frac{{{n + 1}{a}^2{b}}}{{{c}}}}}",
        rf"{n}{a}\sqrt{{\frac{{{b}}}{{{c}}}}}",
    ]
    return Pairs(rf"{a}\sqrt{{\frac{{{n}{b}}}{{{c}}}}}", same, other)


@answer_class("choices without separators")
def _run(rng: random.Random) -> Pairs:
    *chosen, spare = sorted(rng.sample("ABCDEF", rng.randint(3, 5)))
    run = "".join(chosen)
    same = [
        ", ".join(chosen),
        ",".join(chosen),
        rf"\text{{{', '.join(chosen)}}}",
        ", ".join(f"({letter})" for letter in chosen),
        "".join(f"({letter})" for letter in chosen),
        rf"\{{{', '.join(chosen)}\}}",
    ]
    other = [
        run + spare,
        ", ".join([*chosen, spare]),
        ", ".join(chosen[:-1]),
        chosen[0],
        ", ".join([*chosen[1:], spare]),
    ]
    return Pairs(run, same, other)
