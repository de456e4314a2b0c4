r"""Generated classes of other notations: amounts in two units, rates, ordinals, choices, words for values, vectors."""

from __future__ import annotations

import random

from bench.forms.generated import Pairs, answer_class, signed, total

_AMOUNTS = [("hours", "h", "minutes", "min"), ("feet", "ft", "inches", "in"), ("pounds", "lb", "ounces", "oz")]
_RATES = [("m/s", "meters per second"), ("km/h", "kilometers per hour"), ("ft/s", "feet per second")]
_PHYSICS = {"J": "joules", "N": "newtons", "W": "watts", "V": "volts", "Pa": "pascals", "K": "kelvin"}
_NUMBERS = "two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_SUFFIX = {1: "st", 2: "nd", 3: "rd"}


@answer_class("amount in two units")
def _amount(rng: random.Random) -> Pairs:
    large, large_short, small, small_short = rng.choice(_AMOUNTS)
    a, b = rng.randint(2, 9), rng.randint(2, 11)
    gold = rf"{a}\text{{ {large} and }}{b}\text{{ {small}}}"
    same = [
        f"{a} {large} and {b} {small}",
        f"{a} {large} {b} {small}",
        rf"{a}\text{{ {large} }}{b}\text{{ {small}}}",
        rf"{a}\text{{ {large_short} }}{b}\text{{ {small_short}}}",
        rf"{a}\text{{ {large}, }}{b}\text{{ {small}}}",
        f"{a} {large_short} {b} {small_short}",
    ]
    other = [
        rf"{a}\text{{ {large} and }}{b + 1}\text{{ {small}}}",
        rf"{a + 1}\text{{ {large} and }}{b}\text{{ {small}}}",
        f"{a}.{b}",
        f"{a}{b}",
        f"{a} {large}",
        f"{b} {small}",
        f"{a} {small} and {b} {small}",
    ]
    return Pairs(gold, same, other)


@answer_class("rate")
def _rate(rng: random.Random) -> Pairs:
    short, long_ = rng.choice(_RATES)
    top, bottom = short.split("/")
    value = rng.randint(2, 99)
    gold = rf"{value}\text{{ {short}}}"
    wrong = next(unit for unit, _ in _RATES if unit != short)
    same = [
        str(value),
        f"{value} {short}",
        f"{value} {long_}",
        rf"{value}\,\mathrm{{{short}}}",
        rf"{value}\text{{ {top}}}/\text{{{bottom}}}",
        rf"{value}\,\mathrm{{{top}\,{bottom}^{{-1}}}}",
        rf"{value}\ \frac{{\text{{{top}}}}}{{\text{{{bottom}}}}}",
    ]
    other = [
        rf"{value + 1}\text{{ {short}}}",
        rf"{value}\text{{ {wrong}}}",
        rf"{value}\text{{ {top}}}",
        rf"{value}\text{{ {bottom}}}",
        rf"{value}\text{{ {short}}}^2",
        f"{value}0",
        rf"{value}\text{{ J}}",
    ]
    return Pairs(gold, same, other)


@answer_class("physical unit")
def _physical_unit(rng: random.Random) -> Pairs:
    symbol = rng.choice(list(_PHYSICS))
    value = rng.randint(2, 500)
    others = [unit for unit in _PHYSICS if unit != symbol]
    same = [
        str(value),
        rf"{value}\,\mathrm{{{symbol}}}",
        f"{value} {symbol}",
        f"{value} {_PHYSICS[symbol]}",
        f"{value}.0",
        rf"{value}\text{{ {_PHYSICS[symbol]}}}",
    ]
    other = [rf"{value}\text{{ {unit}}}" for unit in others[:3]]
    other += [str(value + 1), rf"{value}\text{{ m}}", rf"-{value}\text{{ {symbol}}}", rf"{value}0\text{{ {symbol}}}"]
    return Pairs(rf"{value}\text{{ {symbol}}}", same, other)


@answer_class("ordinal")
def _ordinal(rng: random.Random) -> Pairs:
    value = rng.randint(1, 60)
    suffix = "th" if value // 10 == 1 else _SUFFIX.get(value % 10, "th")
    same = [
        str(value),
        f"{value}{suffix}",
        rf"{value}\text{{{suffix}}}",
        rf"{value}^{{{suffix}}}",
        rf"\text{{{value}{suffix}}}",
        rf"{value}^\text{{{suffix}}}",
    ]
    other = [
        f"{value + 1}{suffix}",
        f"{value}0th",
        rf"{value + 2}^{{\text{{th}}}}",
        f"-{value}",
        rf"\frac{{1}}{{{value + 1}}}",
    ]
    return Pairs(rf"{value}^{{\text{{{suffix}}}}}", same, other)


@answer_class("choice with its content")
def _choice(rng: random.Random) -> Pairs:
    letter, value = rng.choice("ABCDE"), rng.randint(2, 400)
    wrong = rng.choice([other for other in "ABCDE" if other != letter])
    same = [
        letter,
        f"({letter})",
        rf"\text{{({letter})}}",
        str(value),
        f"({letter}) {value}",
        rf"\text{{({letter})}} {value}",
        rf"\mathrm{{({letter})}}\ {value}",
        letter.lower(),
    ]
    other = [
        wrong,
        f"({wrong})",
        rf"\textbf{{({wrong})}}\ {value}",
        f"({letter}) {value + 1}",
        str(value + 1),
        f"-{value}",
        rf"\text{{{wrong}}}",
    ]
    return Pairs(rf"\textbf{{({letter})}}\ {value}", same, other)


@answer_class("no solution in words")
def _no_solution(rng: random.Random) -> Pairs:
    texts = ["none", "no solution", "no solutions", "no real solutions", "empty set", "there are no solutions"]
    texts = [written for text in texts for written in (text, rf"\text{{{text}}}", rf"\text{{{text.capitalize()}.}}")]
    golds = [r"\emptyset", r"\varnothing", r"\{\}", *texts]
    value = rng.randint(1, 99)
    other = [
        "0",
        str(value),
        r"\{0\}",
        r"\{\emptyset\}",
        rf"x={value}",
        r"\mathbb{R}",
        r"\infty",
        r"\text{one solution}",
    ]
    return Pairs(rng.choice(golds), golds, other)


@answer_class("all real numbers in words")
def _reals(rng: random.Random) -> Pairs:
    golds = [
        r"\mathbb{R}",
        r"(-\infty,\infty)",
        r"x\in\mathbb{R}",
        r"\text{all real numbers}",
        "all real numbers",
        r"\text{All reals}",
        r"-\infty<x<\infty",
    ]
    value = rng.randint(1, 99)
    other = [
        rf"({value},\infty)",
        rf"x\ne {value}",
        r"\emptyset",
        r"\mathbb{Z}",
        r"(0,\infty)",
        rf"\mathbb{{R}}\setminus\{{{value}\}}",
    ]
    return Pairs(rng.choice(golds), golds, other)


@answer_class("number in words")
def _number_word(rng: random.Random) -> Pairs:
    at = rng.randrange(len(_NUMBERS))
    word, value = _NUMBERS[at], at + 2
    wrong = _NUMBERS[(at + 1) % len(_NUMBERS)]
    forms = [
        word,
        word.capitalize(),
        rf"\text{{{word}}}",
        str(value),
        rf"\text{{{value}}}",
        rf"\textbf{{{word}}}",
        f"{value}.0",
    ]
    other = [wrong, rf"\text{{{wrong}}}", str(value + 1), f"{value}0", rf"\frac{{1}}{{{value}}}", f"-{value}"]
    return Pairs(rng.choice([*forms[:4]]), forms, other)


@answer_class("angle in degrees and radians")
def _angle(rng: random.Random) -> Pairs:
    top, bottom = rng.randint(1, 11), rng.choice([2, 3, 4, 5, 6, 9, 10, 12])
    degrees = 180 * top // bottom
    radians = [rf"\frac{{{top}\pi}}{{{bottom}}}", rf"\frac{{{top}}}{{{bottom}}}\pi", rf"{top}\pi/{bottom}"]
    in_degrees = [rf"{degrees}^\circ", rf"{degrees}^{{\circ}}", rf"{degrees}\text{{ degrees}}", f"{degrees}°"]
    gold = rng.choice([radians[0], in_degrees[0]])
    other = [
        rf"{degrees + 1}^\circ",
        rf"\frac{{{top + bottom}\pi}}{{{bottom}}}",
        rf"-{degrees}^\circ",
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"{2 * degrees}^\circ",
        rf"{degrees}\pi",
    ]
    return Pairs(gold, [*radians, *in_degrees], other)


@answer_class("time of day")
def _time(rng: random.Random) -> Pairs:
    hour, minute = rng.randint(1, 11), rng.randint(0, 59)
    half = rng.choice("ap")
    wrong = "p" if half == "a" else "a"
    time = f"{hour}:{minute:02d}"
    same = [
        time,
        f"{time} {half}.m.",
        f"{time} {half.upper()}M",
        rf"{time}\text{{ {half.upper()}M}}",
        rf"{hour}\!:\!{minute:02d}\text{{ {half}.m.}}",
        rf"\text{{{time} {half}.m.}}",
    ]
    other = [
        rf"{time}\text{{ {wrong}.m.}}",
        rf"{hour + 1}:{minute:02d}\text{{ {half}.m.}}",
        rf"{hour}:{(minute + 7) % 60:02d}\text{{ {half}.m.}}",
        f"{time} {wrong.upper()}M",
        str(hour),
    ]
    return Pairs(rf"{time}\text{{ {half}.m.}}", same, other)


@answer_class("vector in components")
def _vector(rng: random.Random) -> Pairs:
    values = [signed(rng, 2, 9) for _ in range(rng.choice([2, 3]))]
    size = len(values)

    def written(template: str) -> str:
        return total(*((value, template.format(letter)) for value, letter in zip(values, "ijk", strict=False)))

    inside = ",".join(map(str, values))
    same = [
        written(r"\hat{{{}}}"),
        written(r"\vec{{{}}}"),
        written(r"\hat{{\mathbf{{{}}}}}"),
        written(" {}"),
        rf"\langle {inside}\rangle",
        f"({inside})",
        r"\begin{pmatrix}" + r"\\".join(map(str, values)) + r"\end{pmatrix}",
    ]
    changed = [values[0] + 1, *values[1:]]
    other = [
        rf"\langle {','.join(map(str, changed))}\rangle",
        f"({','.join(map(str, values[:-1]))})" if size == 3 else str(values[0]),
        rf"{values[0]}\mathbf{{i}}",
        total(*((-value, rf"\mathbf{{{letter}}}") for value, letter in zip(values, "ijk", strict=False))),
        f"({inside},1)",
    ]
    if values[0] != values[1]:
        other.append(f"({','.join(map(str, [values[1], values[0], *values[2:]]))})")
    return Pairs(written(r"\mathbf{{{}}}"), same, other)


@answer_class("binomial in other notations")
def _binomial(rng: random.Random) -> Pairs:
    n = rng.randint(7, 30)
    k = rng.randint(2, (n - 1) // 2)
    same = [
        f"C({n},{k})",
        rf"{{}}_{{{n}}}C_{{{k}}}",
        rf"^{{{n}}}C_{{{k}}}",
        f"{n}C{k}",
        rf"{{{n} \choose {k}}}",
        rf"\frac{{{n}!}}{{{k}!{n - k}!}}",
        rf"\dbinom{{{n}}}{{{n - k}}}",
    ]
    other = [
        rf"\binom{{{k}}}{{{n}}}",
        f"C({n},{k + n})",
        rf"{{}}_{{{n + 1}}}C_{{{k}}}",
        f"{n}C{k - 1}",
        rf"\frac{{{n}!}}{{{n - k}!}}",
        str(n * k),
    ]
    return Pairs(rf"\binom{{{n}}}{{{k}}}", same, other)


@answer_class("integer parameter")
def _parameter(rng: random.Random) -> Pairs:
    a, b = rng.choice([(a, b) for a in range(3, 10) for b in range(1, 10) if 2 * b % a and b % a])
    gold = rf"{a}k+{b}, k\in\mathbb{{Z}}"
    same = [
        f"{a}k+{b}",
        rf"{a}n+{b}, n\in\mathbb{{Z}}",
        rf"{b}+{a}m \text{{ for }} m\in\mathbb{{Z}}",
        rf"{a}k+{b} \text{{ where }} k \in \mathbb{{Z}}",
        rf"{a}k + {b} \; (k\in\mathbb{{Z}})",
    ]
    other = [f"{a}k", f"{a}k-{b}", rf"{a + 1}n+{b}, n\in\mathbb{{Z}}", f"{a}+{b}k" if a != b else f"{a}", str(a + b)]
    return Pairs(gold, same, other)


@answer_class("function with another name")
def _function(rng: random.Random) -> Pairs:
    a, b = rng.randint(2, 9), signed(rng, 1, 9)
    body = total((a, "x"), (b, ""))
    same = [
        f"y={body}",
        body,
        f"f(x)={total((b, ''), (a, 'x'))}",
        f"f(t)={total((a, 't'), (b, ''))}",
        f"f(x) = {body}.",
    ]
    other = [
        f"y={total((a, 'x'), (-b, ''))}",
        f"g(x)={body}",
        f"f(x)={total((a + 1, 'x'), (b, ''))}",
        f"f(t)={body}",
        f"f'(x)={body}",
        str(a),
    ]
    return Pairs(f"f(x)={body}", same, other)


@answer_class("segment")
def _segment(rng: random.Random) -> Pairs:
    p, q, r = rng.sample("ABCDFGHKLMNPQRSTUVWXYZ", 3)
    same = [rf"\overline{{{p}{q}}}", rf"\overline{{{p} {q}}}", rf"\text{{{p}{q}}}", rf"\mathrm{{{p}{q}}}", f"{p} {q}"]
    other = [f"{p}{r}", rf"\overline{{{q}{r}}}", rf"\text{{{p}{r}}}", p, f"{p}{q}{r}", rf"\overrightarrow{{{r}{q}}}"]
    return Pairs(f"{p}{q}", same, other)


@answer_class("half-open interval in other brackets")
def _half_open(rng: random.Random) -> Pairs:
    low = rng.randint(-20, 20)
    high = low + rng.randint(1, 30)
    same = [f"[{low},{high}[", rf"{low}\le x<{high}", rf"\left[{low},{high}\right)", rf"{high}>x\ge {low}"]
    same += [rf"\{{x\mid {low}\le x<{high}\}}", rf"x\ge {low}\text{{ and }}x<{high}"]
    other = [f"]{low},{high}]", f"[{low},{high}]", f"({low},{high})", f"]{low},{high}[", rf"{low}<x\le {high}"]
    other += [f"[{low},{high + 1}["]
    return Pairs(f"[{low},{high})", same, other)


@answer_class("intervals joined by and")
def _joined(rng: random.Random) -> Pairs:
    low = rng.randint(-20, 10)
    high = low + rng.randint(1, 20)
    gold = rf"(-\infty,{low})\cup({high},\infty)"
    same = [
        rf"(-\infty,{low})\text{{ and }}({high},\infty)",
        rf"(-\infty,{low})\text{{ or }}({high},\infty)",
        rf"x<{low}\text{{ or }}x>{high}",
        rf"({high},\infty),(-\infty,{low})",
        rf"\mathbb{{R}}\setminus[{low},{high}]",
    ]
    other = [
        rf"x<{low}\text{{ and }}x>{high}",
        rf"({low},{high})",
        rf"(-\infty,{low}]\text{{ and }}({high},\infty)",
        rf"(-\infty,{low})",
        rf"(-\infty,{low})\cup({high + 1},\infty)",
    ]
    return Pairs(gold, same, other)
