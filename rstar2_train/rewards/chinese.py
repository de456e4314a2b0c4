r"""Answers of Chinese problem sets: `5元`, `3或5`, `①③④`, `三`.

`paired_forms` calls it for the answer and the gold answer. Chinese words are compared as words (`words`). Pure.
"""

from __future__ import annotations

import re

HAN = "[\u4e00-\u9fff]"
"""Pattern of a Chinese character."""
_CIRCLED = re.compile("[\N{CIRCLED DIGIT ONE}-\N{CIRCLED NUMBER TWENTY}]+")
_SEPARATORS = re.compile("[\\s,、\N{FULLWIDTH COMMA}]+")
_REWRITES = [
    (re.compile(r"(?<=\d)\s*(?:元|度|个|人|天|年|岁|只|本|次|种|米|厘米|千米|千克|克|分钟|小时|秒)\s*$"), ""),
    (re.compile(r"\s*或者?\s*"), r"\\text{ or }"),
    (re.compile(r"\s*[和且]\s*"), r"\\text{ and }"),
]
"""Units after a number and conjunctions -> LaTeX."""
_NUMBERS = {word: str(number) for number, word in enumerate("零一二三四五六七八九十")}


def in_latex(answer: str, gold: str) -> tuple[str, str]:
    """Rewrite numbers, units after a number, and conjunctions of answers with digits."""
    first, second = _in_latex(answer), _in_latex(gold)
    return first, second


def _in_latex(text: str) -> str:
    text = _NUMBERS.get(text.strip(), text)
    if text.isascii() or not re.search(r"\d", text):
        return text
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def circled(answer: str, gold: str) -> tuple[str, str]:
    """Return the gold answer twice if both list the same circled numbers. Else they would be read as digits."""
    if gold.isascii():
        return answer, gold
    ours, theirs = (_SEPARATORS.sub("", text) for text in (answer, gold))
    same = _CIRCLED.fullmatch(ours) and _CIRCLED.fullmatch(theirs) and sorted(ours) == sorted(theirs)
    return (gold, gold) if same else (answer, gold)
