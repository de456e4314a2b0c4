"""The families of word problems: a text with drawn numbers, and the expression that solves it.

SFT has demonstrations of the families `seen`, RL trains on `seen` and `rl-only`, and no stage trains on `held-out`:
other situations, whose expressions also occur in families of RL.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Group = Literal["seen", "rl-only", "held-out"]
NAMES = ("Raj", "Maria", "Tom", "Aisha", "Liam", "Chen", "Nora", "Omar", "Eva", "Paul", "Ines", "Yuki")
GOODS = ("apples", "pencils", "books", "stamps", "shirts", "tickets", "cups", "marbles", "cards", "lamps")


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of word problem. Texts and expression have fields for numbers, a to d; texts also for names and things."""

    name: str
    group: Group
    texts: tuple[str, ...]
    expression: str
    """Python expression of the answer, a positive integer."""
    draw: Callable[[random.Random], dict[str, int]]
    """Draws the numbers."""


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A drawn problem."""

    family: Family
    text: str
    numbers: tuple[int, ...]
    """The numbers of the text, in the order of their fields."""
    expression: str
    """The family's expression with these numbers."""

    @property
    def answer(self) -> int:
        """The answer."""
        return evaluate(self.expression)


def evaluate(expression: str) -> int:
    """Return the value of an expression of integers that this package wrote, rounded down."""
    return int(eval(expression, {"__builtins__": {}}))  # of this module's own texts and numbers


def draw_problem(family: Family, rng: random.Random) -> WordProblem:
    """Draw numbers, names and things for a family."""
    numbers = family.draw(rng)
    first, second = rng.sample(NAMES, 2)
    text = rng.choice(family.texts).format(**numbers, name=first, other=second, things=rng.choice(GOODS))
    return WordProblem(family, text, tuple(numbers.values()), family.expression.format(**numbers))


def _shop(rng: random.Random) -> dict[str, int]:
    b, c = rng.randint(2, 9), rng.randint(2, 19)
    return {"a": b * c + rng.randint(1, 99), "b": b, "c": c}


def _boxes(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(3, 19), rng.randint(3, 19)
    return {"a": a, "b": b, "c": rng.randint(1, a * b - 1)}


def _trip(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(11, 99), "b": rng.randint(2, 9), "c": rng.randint(2, 99)}


def _share(rng: random.Random) -> dict[str, int]:
    b, c = rng.randint(2, 9), rng.randint(2, 40)
    return {"a": b * rng.randint(3, 40) + c, "b": b, "c": c}


def _pages(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(5, 90), "b": rng.randint(5, 90), "c": rng.randint(2, 4)}


def _spent(rng: random.Random) -> dict[str, int]:
    b = rng.randint(5, 80)
    return {"a": b + rng.randint(1, 99), "b": b}


def _equal_parts(rng: random.Random) -> dict[str, int]:
    b = rng.randint(2, 12)
    return {"a": b * rng.randint(3, 40), "b": b}


def _two_kinds(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(2, 12), "b": rng.randint(2, 20), "c": rng.randint(2, 12), "d": rng.randint(2, 20)}


def _average(rng: random.Random) -> dict[str, int]:
    a, b = rng.randint(5, 60), rng.randint(5, 60)
    c = rng.randint(5, 60)
    return {"a": a, "b": b, "c": c + (-(a + b + c)) % 3}


def _halves(rng: random.Random) -> dict[str, int]:
    return {"a": 2 * rng.randint(10, 90), "b": rng.randint(2, 9)}


def _two_numbers(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(5, 95), "b": rng.randint(4, 60)}


def _older(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(4, 20), "b": rng.randint(2, 5), "c": rng.randint(2, 15)}


FAMILIES = (
    Family(
        "shop",
        "seen",
        (
            "{name} had {a} dollars and bought {b} {things} for {c} dollars each. How many dollars are left?",
            "{name} has {a} dollars. How many dollars remain after buying {b} {things} at {c} dollars each?",
        ),
        "{a}-{b}*{c}",
        _shop,
    ),
    Family(
        "boxes",
        "seen",
        (
            "A store has {a} boxes with {b} {things} in each box. It sells {c} {things}. How many are left?",
            "{name} packs {b} {things} into each of {a} boxes and then gives away {c} {things}. How many remain?",
        ),
        "{a}*{b}-{c}",
        _boxes,
    ),
    Family(
        "trip",
        "seen",
        (
            "{name} drives at {a} km per hour for {b} hours and then walks {c} km. How many km is that in total?",
            "A train travels {a} km each hour. After {b} hours, {c} km are left. How long is the whole way in km?",
        ),
        "{a}*{b}+{c}",
        _trip,
    ),
    Family(
        "share",
        "seen",
        (
            "{name} has {a} {things}, keeps {c} and divides the others equally among {b} friends. "
            "How many does each friend get?",
            "Of {a} {things}, {c} are broken. The rest is put into {b} equal bags. How many {things} are in a bag?",
        ),
        "({a}-{c})//{b}",
        _share,
    ),
    Family(
        "pages",
        "seen",
        (
            "{name} read {a} pages on Monday, {b} pages on Tuesday, and {c} times as many as on Tuesday on Wednesday. "
            "How many pages is that together?",
            "A club sold {a} tickets in May, {b} in June, and in July {c} times as many as in June. How many in all?",
        ),
        "{a}+{b}+{c}*{b}",
        _pages,
    ),
    Family(
        "rows",
        "rl-only",
        (
            "{name} plants {a} rows of trees with {b} trees in each row. How many trees does {name} plant?",
            "A ticket costs {b} dollars. {name} buys {a} tickets. How many dollars does {name} pay?",
        ),
        "{a}*{b}",
        _two_numbers,
    ),
    Family(
        "together",
        "rl-only",
        (
            "{name} has {a} {things} and {other} has {b}. How many {things} do they have together?",
            "{a} children and {b} parents are in a hall. How many people are that in all?",
        ),
        "{a}+{b}",
        _two_numbers,
    ),
    Family(
        "spent",
        "rl-only",
        (
            "{name} had {a} dollars and spent {b}. How many dollars are left?",
            "A shop has {a} {things} and sells {b} of them. How many are left in the shop?",
        ),
        "{a}-{b}",
        _spent,
    ),
    Family(
        "equal parts",
        "rl-only",
        (
            "{name} divides {a} {things} equally among {b} friends. How many does each friend get?",
            "A rope of {a} m is cut into {b} equal pieces. How many metres long is a piece?",
        ),
        "{a}//{b}",
        _equal_parts,
    ),
    Family(
        "two kinds",
        "rl-only",
        (
            "{name} buys {a} pens for {b} dollars each and {c} books for {d} dollars each. What is the total price?",
            "A farm sells {a} baskets at {b} dollars each and {c} sacks at {d} dollars each. How much does it get?",
        ),
        "{a}*{b}+{c}*{d}",
        _two_kinds,
    ),
    Family(
        "average",
        "rl-only",
        (
            "{name} scored {a}, {b} and {c} points in three games. What is the average score?",
            "Three bags weigh {a}, {b} and {c} kg. What is their mean weight in kg?",
        ),
        "({a}+{b}+{c})//3",
        _average,
    ),
    Family(
        "halves",
        "rl-only",
        (
            "{name} has {a} {things} and gives half of them away. Then {name} finds {b} more. How many now?",
            "Half of the {a} seats in a bus are taken, and then {b} more people sit down. How many seats are taken?",
        ),
        "{a}//2+{b}",
        _halves,
    ),
    Family(
        "area",
        "held-out",
        (
            "A garden is {a} m long and {b} m wide. What is its area in square metres?",
            "How many square tiles with sides of 1 m cover a hall of {a} m by {b} m?",
        ),
        "{a}*{b}",
        _two_numbers,
    ),
    Family(
        "tank",
        "held-out",
        (
            "A tank holds {a} litres. Every hour {b} litres flow out of it. How many litres are left after {c} hours?",
            "{name} must read {a} pages and reads {b} pages a day. How many pages remain after {c} days?",
        ),
        "{a}-{b}*{c}",
        _shop,
    ),
    Family(
        "theatre",
        "held-out",
        (
            "A theatre has {a} rows of {b} seats, and {c} seats are empty. How many seats are taken?",
            "A farmer sends {a} crates of {b} eggs. {c} of the eggs break. How many are whole?",
        ),
        "{a}*{b}-{c}",
        _boxes,
    ),
    Family(
        "older",
        "held-out",
        (
            "{name} is {a} years old. {other} is {b} times as old. How old will {other} be in {c} years?",
            "A tree is {a} m tall, and a tower is {b} times as tall. A mast of {c} m stands on the tower. "
            "How high is its top in metres?",
        ),
        "{a}*{b}+{c}",
        _older,
    ),
)
"""16 families: five seen, seven of RL only, four held out."""
