r"""Rewrites an answer or the gold answer where the form of the other one shows its meaning.

`verify` calls `in_one_form` ahead of `normalize`: times of day (`15:30` for `3:30 p.m.`), lists of choices (`ACD` for
`A, C, D`, `III and I` for `I and III`), counted things in words (`eighteen eggs` for `18`), indices (`\sum_k k` for
`\sum_i i`). The form of one text alone does not show the meaning: `15:30` may be a ratio, `ACD` a triangle. Pure.
"""

from __future__ import annotations

import re

from rstar2_train.rewards.chinese import circled, in_latex
from rstar2_train.rewards.normalize import plain_latex
from rstar2_train.rewards.ordered_names import with_names
from rstar2_train.rewards.units import FONT
from rstar2_train.rewards.words import spoken_number

_CLOCK = re.compile(r"(\d{1,2}):(\d\d)\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_OPTION = re.compile(r"(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?:? ?\(?([A-J])\)?", re.IGNORECASE)
_CHOICES = re.compile(r"(?:[A-H]|[IVX]{1,4})(?:(?:, and |, | and )(?:[A-H]|[IVX]{1,4}))+")
_NUMERALS = frozenset("I II III IV V VI VII VIII IX X".split())  # noqa: SIM905
_COUNTED = re.compile(r"([a-z]+(?:[ -][a-z]+)*) ([a-z]{3,})", re.IGNORECASE)
_NO_THING = re.compile(
    r"(?:dozen|score|gross|pair|couple|half|halve|quarter|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh"
    r"|twelfth|hundred|thousand|[a-z]*(?:million|billion|trillion)|[a-z]*th|time|squared|cubed|square|root|factorial|over"
    r"|plus|minus|point|percent|and|mod|base|digit|[a-z]+teen|[a-z]+ty|one|two|three|four|five|six|seven|eight|nine|ten)s?",
    re.IGNORECASE,
)
"""Words after a number that change its value."""
_BOUND = re.compile(
    r"\\(?:sum|prod)(?:\\limits)?\s*_\s*\{\s*([a-zA-Z])\s*="
    r"|\\int(?![a-zA-Z])(?:\\limits)?\s*_(?:(?!\\int).)*?(?<![a-zA-Z\\])(?:\\mathrm\s*\{\s*d\s*\}|d)\s*([a-zA-Z])(?![a-zA-Z])",
    re.DOTALL,
)
"""The index of a sum or a product, or the variable of a definite integral."""
_LETTERS = re.compile(
    r"\\(?:text|mbox|mathrm|operatorname)\s*\{[^{}]*\}|\\[a-zA-Z]+|d(?=[a-zA-Z](?![a-zA-Z]))|[a-zA-Z]"
)
_BOUND_NAMES = "kjpqruvwz"
"""Names for the variables that a sum or an integral binds, in this order."""


def in_one_form(answer: str, gold: str) -> tuple[str, str]:
    """Return both answers, rewritten where the form of one of them shows the meaning of the other."""
    for rewrite in (in_latex, circled, with_names, _times, _option, _choices, _nouns, _indices):
        answer, gold = rewrite(answer, gold)
    return answer, gold


def _plain(text: str) -> str:
    """Return a text without fonts and braces."""
    return " ".join(re.sub(FONT + r"(?=\{)|[{}$*\"]", " ", plain_latex(text)).split()).strip(" .,")


def _option(answer: str, gold: str) -> tuple[str, str]:
    """Return `A` for `Option A` if the gold answer is the letter alone."""
    option = _OPTION.fullmatch(_plain(answer)) if re.fullmatch("[A-J]", gold.strip()) else None
    return (option[1].upper(), gold) if option else (answer, gold)


def _times(answer: str, gold: str) -> tuple[str, str]:
    """Rewrite `15:30` as `3:30 pm` if the other text is a time with `a.m.` or `p.m.`."""
    sides = [_CLOCK.fullmatch(_plain(text)) if ":" in text else None for text in (answer, gold)]
    if None in sides or sum(bool(side and side[3]) for side in sides) != 1:
        return answer, gold
    first, second = (_twelve_hours(side) or text for side, text in zip(sides, (answer, gold), strict=True) if side)
    return first, second


def _twelve_hours(clock: re.Match[str]) -> str | None:
    """Return the time with `am` or `pm` if only a clock of 24 hours has it."""
    hour = int(clock[1])
    if clock[3] or 1 <= hour <= 12 or hour > 23:
        return None
    return rf"{hour % 12 or 12}:{clock[2]}\text{{ {'pm' if hour > 12 else 'am'}}}"


def _choices(answer: str, gold: str) -> tuple[str, str]:
    """Return the gold answer twice if both list the same choices."""
    run = _run(gold)
    theirs = _listed(gold) or (run if run == sorted(set(run)) else [])
    if not theirs:
        return answer, gold
    ours = _listed(answer) or (_run(answer) if _listed(gold) else [])
    joined = " and " in _plain(gold)  # without `and` the list may be an order
    return (gold, gold) if ours == theirs or (joined and sorted(ours) == sorted(theirs)) else (answer, gold)


def _run(text: str) -> list[str]:
    """Return the letters of choices without separators, such as `ACD`; empty for other texts."""
    run = _plain(text)
    return list(run) if re.fullmatch("[A-H]{2,8}", run) else []


def _listed(text: str) -> list[str]:
    """Return the choices that a text lists, such as `I and III`; empty for other texts."""
    plain = re.sub(r"\s*\\?&\s*|\s*,\s*and\s+", " and ", re.sub(r"\s*[,、]\s*", ", ", _brackets(text)))
    plain = re.sub(r"^(?:both|statements?|choices|options)\s|\sonly$", "", plain, flags=re.IGNORECASE)
    if not _CHOICES.fullmatch(plain):
        return []
    choices = re.split(r", and |, | and ", plain)
    letters = all(len(choice) == 1 and choice in "ABCDEFGH" for choice in choices)
    return choices if (letters or set(choices) <= _NUMERALS) and len(set(choices)) == len(choices) else []


def _brackets(text: str) -> str:
    """Return a text without brackets and with a comma between `(A)` and `(C)`."""
    return re.sub(r"[()\\]", "", re.sub(r"\)\s*\(", ", ", _plain(text))).strip()


def _nouns(answer: str, gold: str) -> tuple[str, str]:
    """Rewrite `eighteen eggs` as `18 eggs` if the other text has digits, and no other things."""
    first, second = _counted(answer, gold), _counted(gold, answer)
    return first, second


def _counted(text: str, other: str) -> str:
    counted = _COUNTED.fullmatch(_plain(text)) if len(text) < 80 and re.search(r"\d", other) else None
    if counted is None or _NO_THING.fullmatch(counted[2]):
        return text
    number = spoken_number(counted[1].lower())
    noun = counted[2].lower().rstrip("s")
    nouns = re.findall(r"[a-z]{3,}", re.sub(FONT, "", other).lower())
    if number is None or not number.isdigit() or (nouns and not any(word.startswith(noun) for word in nouns)):
        return text
    return rf"{number}\text{{ {counted[2]}}}"


def _indices(answer: str, gold: str) -> tuple[str, str]:
    """Give the variables that sums and integrals bind names that neither text has, so that `i` is not a constant."""
    texts = answer, gold
    bound = [list(dict.fromkeys(match[1] or match[2] for match in _BOUND.finditer(text))) for text in texts]
    same = not all(bound) or bound[0] == bound[1]
    if same and "i" not in bound[0] + bound[1]:
        return answer, gold
    used = {match[0] for text in texts for match in _LETTERS.finditer(text)}
    unused = [name for name in _BOUND_NAMES if name not in used]
    if len(unused) < max(map(len, bound)):
        return answer, gold
    first, second = (
        _renamed(text, dict(zip(names, unused, strict=False))) for text, names in zip(texts, bound, strict=True)
    )
    return first, second


def _renamed(text: str, names: dict[str, str]) -> str:
    return _LETTERS.sub(lambda match: names.get(match[0], match[0]), text)
