r"""Generated classes of answers whose meaning the form of the other answer shows, and of functions and events.

Times on a clock of 24 hours, lists of choices, counted things in words, integers of an inequality, thin spaces after
the argument of a function, higher roots and roundings in words, probabilities of events, differentials.
"""

from __future__ import annotations

import random

from bench.forms.generated import Pairs, answer_class

_NUMBERS = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()  # noqa: SIM905
_ITEMS = ("eggs", "students", "apples", "marbles", "tickets", "books")
_NUMERALS = ("I", "II", "III", "IV", "V")
_OTHER_FUNCTION = {"sin": "cos", "cos": "sin", "tan": "sin", "ln": "sin"}


@answer_class("time of 24 hours")
def _time(rng: random.Random) -> Pairs:
    hour, minute = rng.randint(1, 11), rng.randint(1, 59)
    gold = rf"{hour}:{minute:02d}\text{{ p.m.}}"
    same = [
        f"{hour + 12}:{minute:02d}",
        f"{hour}:{minute:02d} PM",
        f"{hour}:{minute:02d}",
        rf"\text{{{hour}:{minute:02d} p.m.}}",
        rf"{hour + 12}:{minute:02d}.",
    ]
    other = [
        f"{hour}:{minute:02d} AM",
        f"{hour % 11 + 13}:{minute:02d}",
        f"{hour + 12}:{(minute + 1) % 60:02d}",
        f"{hour + 12}.{minute:02d}",
        f"{hour}{minute:02d}",
    ]
    return Pairs(gold, same, other)


@answer_class("list of statements")
def _statements(rng: random.Random) -> Pairs:
    first, second, third = sorted(rng.sample(range(5), 3))
    a, b, c = (_NUMERALS[at] for at in (first, second, third))
    same = [f"{a}, {b}", f"{b} and {a}", rf"\text{{{b} and {a}}}", f"{a} and {b} only", rf"{a} \& {b}"]
    other = [f"{a} and {c}", a, b, f"{a}, {b} and {c}", f"{a} or {b}", f"{a}{b}"]
    return Pairs(rf"\text{{{a} and {b}}}", same, other)


@answer_class("list of choices")
def _choices(rng: random.Random) -> Pairs:
    letters = sorted(rng.sample("ABCDEFG", 4))
    *chosen, spare = letters
    rng.shuffle(letters)
    run = "".join(chosen)
    same = [run, rf"\text{{{run}}}", ",".join(chosen), rf"\textbf{{{run}}}", rf"\text{{{', '.join(chosen)}}}"]
    other = [run[:2], run + spare, run[:2] + spare, run[0], f"{chosen[0]}, {chosen[1]}", run.lower(), run[::-1]]
    return Pairs(", ".join(chosen), same, other)


@answer_class("counted things in words")
def _items(rng: random.Random) -> Pairs:
    at, item = rng.randrange(len(_NUMBERS)), rng.choice(_ITEMS)
    word, number = _NUMBERS[at], at + 2
    same = [f"{word} {item}", rf"\text{{{word} {item}}}", f"{word.capitalize()} {item}", f"{number} {item}"]
    other = [
        f"{_NUMBERS[at - 1]} {item}",
        f"{word} dozen",
        f"{word} hundred",
        f"{word} tenths",
        f"{word} squared",
        rf"\text{{not {word} {item}}}",
    ]
    return Pairs(str(number), same, other)


@answer_class("inequality of integers")
def _integers(rng: random.Random) -> Pairs:
    low = rng.randint(-20, 20)
    high = low + rng.randint(3, 20)
    letter = rng.choice("nkm")
    gold = rf"{low}\le {letter}\le {high}, {letter}\in\mathbb{{Z}}"
    same = [
        rf"{low}\le {letter}\le {high}",
        rf"{low - 1}<{letter}<{high + 1}",
        rf"{low}\le {letter}<{high + 1}",
        rf"{low - 1}<{letter}\le {high}, {letter}\in\mathbb{{Z}}",
    ]
    other = [
        rf"{low}<{letter}<{high}",
        rf"{low - 1}\le {letter}\le {high}",
        rf"{low}\le {letter}\le {high + 1}",
        rf"{low}\le {letter}",
        rf"{low - 1}<{letter}\le {high + 1}",
    ]
    return Pairs(gold, same, other)


@answer_class("thin space after an argument")
def _thin_space(rng: random.Random) -> Pairs:
    name = rng.choice(list(_OTHER_FUNCTION))
    letter, k = rng.choice("xt"), rng.randint(2, 9)
    power = rf"e^{{-{k}{letter}}}"
    same = [
        rf"{power}\{name} {letter}",
        rf"{power}\{name}({letter})",
        rf"\{name}({letter})\,{power}",
        rf"\{name}\left({letter}\right)\cdot {power}",
    ]
    other = [
        rf"\{name}({letter}{power})",
        rf"\{name} {letter}\, e^{{{k}{letter}}}",
        rf"\{_OTHER_FUNCTION[name]} {letter}\, {power}",
        rf"\{name} {letter}\, e^{{-{k + 1}{letter}}}",
        rf"\{name} {letter}+{power}",
    ]
    return Pairs(rf"\{name} {letter}\, {power}", same, other)


@answer_class("higher root in words")
def _root(rng: random.Random) -> Pairs:
    value = rng.choice([n for n in range(2, 100) if round(n ** (1 / 3)) ** 3 != n])
    same = [
        rf"\root 3 \of {{{value}}}",
        rf"\operatorname{{cbrt}}({value})",
        f"cbrt({value})",
        f"∛{value}",
        f"{value}^{{1/3}}",
    ]
    other = [
        rf"\root 4 \of {{{value}}}",
        f"cbrt({value + 1})",
        rf"\sqrt{{{value}}}",
        f"3√{value}",
        f"∛{value + 1}",
        rf"\frac{{{value}}}{{3}}",
    ]
    return Pairs(rf"\sqrt[3]{{{value}}}", same, other)


@answer_class("rounded down or up")
def _floor(rng: random.Random) -> Pairs:
    a, b = rng.randint(1, 9), rng.randint(2, 9)
    same = [
        f"floor((n+{a})/{b})",
        rf"\operatorname{{floor}}\left(\frac{{n+{a}}}{{{b}}}\right)",
        rf"\left\lfloor\frac{{n+{a}}}{{{b}}}\right\rfloor",
        rf"\text{{floor}}((n+{a})/{b})",
    ]
    other = [
        f"ceil((n+{a})/{b})",
        f"floor(n+{a})/{b}",
        rf"\frac{{n+{a}}}{{{b}}}",
        f"floor((n+{a + 1})/{b})",
        rf"\lceil (n+{a})/{b}\rceil",
    ]
    return Pairs(rf"\lfloor (n+{a})/{b}\rfloor", same, other)


@answer_class("probability of events")
def _events(rng: random.Random) -> Pairs:
    a, b, c = rng.sample("ABCDFGH", 3)
    gold = rf"P({a})+P({b}\mid {c})P({c})-P({a}\cap {b})"
    same = [
        rf"P({a})+P({c})P({b}|{c})-P({b}\cap {a})",
        rf"P({b}\mid {c})P({c})-P({a}\cap {b})+P({a})",
        rf"\Pr({a})+\Pr({b}|{c})\Pr({c})-\Pr({a}\cap {b})".replace(r"\Pr", "P"),
    ]
    other = [
        rf"P({a})+P({c}\mid {b})P({c})-P({a}\cap {b})",
        rf"P({a})+P({b}\mid {c})P({c})-P({a}\cup {b})",
        rf"P({a})+P({b}\mid {c})P({c})+P({a}\cap {b})",
        rf"P({a})+P({b}\mid {c})P({c})-P({a}\cap {c})",
        rf"P({a})+P({b})P({c})-P({a}\cap {b})",
    ]
    return Pairs(gold, same, other)


@answer_class("equation in differentials")
def _differentials(rng: random.Random) -> Pairs:
    a = rng.randint(2, 99)
    same = [rf"y\,dy={a}x\,dx", rf"y\,dy-{a}x\,dx=0", f"ydy={a}xdx", f"y'={a}x/y", f"yy'={a}x"]
    other = [
        rf"y\,dx={a}x\,dy",
        rf"y\,dy={a + 1}x\,dx",
        rf"y\,dy+{a}x\,dx=0",
        rf"y\,dy={a}\,dx",
        rf"dy={a}x\,dx",
        rf"x\,dy={a}y\,dx",
    ]
    return Pairs(rf"\frac{{dy}}{{dx}}=\frac{{{a}x}}{{y}}", same, other)


@answer_class("derivatives by order")
def _orders(rng: random.Random) -> Pairs:
    a, b = rng.sample(range(2, 30), 2)
    same = [f"y^{{(2)}}+{a}y={b}", rf"\frac{{d^2y}}{{dx^2}}+{a}y={b}", f"y^{{(2)}}={b}-{a}y"]
    other = [f"y^2+{a}y={b}", f"y^{{(3)}}+{a}y={b}", f"y'+{a}y={b}", f"y^{{(2)}}-{a}y={b}", f"y^{{(2)}}+{b}y={a}"]
    return Pairs(f"y''+{a}y={b}", same, other)


@answer_class("term of a sequence")
def _term(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 9), rng.randint(1, 20)
    same = [f"a(n)={a}n+{b}", rf"a_n={a}n+{b}, n\ge 1", rf"a_n={b}+{a}n \text{{ for }} n\ge 1", f"a_k={a}k+{b}"]
    other = [f"a(n)={a}n-{b}", f"b(n)={a}n+{b}", rf"a_n={a + 1}n+{b}, n\ge 1", f"a_{{n+1}}={a}n+{b}", f"a(n)={b + 1}"]
    return Pairs(f"a_n={a}n+{b}", same, other)
