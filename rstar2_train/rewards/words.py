r"""Words as answers: names, choices, the words for numbers and sets (`none`, `all real numbers`, `seven`).

`verify.compare` calls it before `normalize`: an answer that is only words has no value for a parser. Pure.
"""

from __future__ import annotations

import re

from rstar2_train.rewards.normalize import plain_latex
from rstar2_train.rewards.units import FONT

_NO_SOLUTION = (
    "none;empty set;the empty set;no solution;no solutions;no real solution;no real solutions;there are no solutions;"
    "there is no solution;has no solution;no such values;no roots;no real roots"
)
_UNDEFINED = "undefined;not defined;is undefined;does not exist;dne;limit does not exist;the limit does not exist"
_REALS = (
    "all real numbers;all reals;real numbers;all real values;the real numbers;the set of real numbers;"
    "the set of all real numbers;all real numbers x;all real x;all real values of x"
)
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
_VALUES = {
    **dict.fromkeys(_NO_SOLUTION.split(";"), r"\emptyset"),
    **dict.fromkeys(_UNDEFINED.split(";"), r"\text{undefined}"),
    **dict.fromkeys(_REALS.split(";"), r"\mathbb{R}"),
    **dict.fromkeys(["infinity", "positive infinity", "plus infinity"], r"\infty"),
    **dict.fromkeys(["negative infinity", "minus infinity", "-infinity"], r"-\infty"),
    **{word: str(number) for number, word in enumerate(_NUMBERS.split())},
    **{word: str(number) for number, word in enumerate(_ORDINALS.split(), start=1)},
}
_TEXT_WORDS = re.compile(
    r"\\(?:text|mbox)\s*\{(?!\s*(?:and|or)\s*\})([^{}]*[A-Za-z]{2}[^{}]*)\}(?!\s*(?:=|[a-z]\s*\\in))"
)
_SPACES = r"(?:[\s~:]|\\[ ,;:]|\\q?quad(?![a-zA-Z]))*"
_CHOICES = (
    re.compile(rf"(?:{FONT}\{{\s*\(([A-J])\)\s*\}}|\(([A-J])\)(?=[\s~\\:])){_SPACES}(?=[\w$\\.(\[-])(.+)", re.DOTALL),
    re.compile(rf"(?:{FONT}\{{\s*([A-J])[.):]\s*\}}|([A-J])[.):](?=[\s~\\])){_SPACES}(?=[\d$\\(\[-])(.+)", re.DOTALL),
)
"""A choice with its content: `\\textbf{(D)}\\ 12`, `D. 12`. Without parentheses the content is not a word."""
_OPERATOR = re.compile(r"\\(?:cup|cap|setminus|times|cdot|pm|in|le|ge|to|subset)")


def spoken_value(text: str) -> str:
    r"""Return the LaTeX of an answer in words: `\emptyset` for `none`, `7` for `seven`; other texts unchanged."""
    return _VALUES.get(normalize_words(text), text) if len(text) < 80 else text


def without_choice(answer: str, gold: str) -> tuple[str, str]:
    """Return both answers without the letter or without the content of `(D) 12`, as the other side requires.

    The letters remain when both have one and they differ.
    """
    ours, theirs = _choice(answer), _choice(gold)
    if ours and theirs:
        return (ours[1], theirs[1]) if ours[0] == theirs[0] else (ours[0], theirs[0])
    if ours:
        answer = ours[0] if re.fullmatch("[a-j]", normalize_words(gold)) else ours[1]
    if theirs:
        gold = theirs[0] if re.fullmatch("[a-j]", normalize_words(answer)) else theirs[1]
    return answer, gold


def _choice(text: str) -> tuple[str, str] | None:
    """Return (letter, content) of a choice with its content."""
    match = next(filter(None, (choice.fullmatch(text.strip()) for choice in _CHOICES)), None)
    if match is None or _OPERATOR.match(match[3].strip()):
        return None
    return f"({match[1] or match[2]})", match[3].strip()


def normalize_words(text: str) -> str:
    """Return an answer's words in lower case: `c` for `\\text{(C)}` and `Choice C`, `evelyn` for `\\text{Evelyn.}`."""
    plain = re.sub(FONT + r"(?=\{)|[{}$*\"]", "", plain_latex(text)).casefold()
    plain = re.sub(r",?\s+and\s+|\s*,\s*", ", ", " ".join(plain.split())).strip(".,:;() ")
    return re.sub(r"^(?:choice|option|answer)\s*\(?(?=[a-z]$)", "", plain)


def is_word_answer(gold: str) -> bool:
    """Return whether a gold answer is words, which are compared as words: letters in `\\text{}`, or a bare word."""
    bare = re.fullmatch(r"(?:[A-Za-z]{4,}|[A-Z][a-z]{2,}|(?i:yes|no))(?: [A-Za-z]{2,})*", gold.strip())
    choice = re.fullmatch(r"\([A-J]\)", gold.strip())
    return bool(bare or choice or re.fullmatch(FONT + r"\{[^{}\d\\^_=+<>]*[A-Za-z][^{}\d\\^_=+<>]*\}", gold.strip()))


def has_other_words(value: str, other: str) -> bool:
    """Return whether a plain value has words that the other one lacks, as in `\\text{not } 0`.

    Labels before `=`, words before `k\\in`, `and` and `or` do not count. The letters of `\\text{MR}` are in `MR`.
    """
    return any(word.strip(" .,") not in other for word in _TEXT_WORDS.findall(value))
