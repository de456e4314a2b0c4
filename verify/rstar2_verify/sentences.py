r"""Finds what a sentence states: `The pH is 4.76.`, `Janet has **104 hours** left.`, `No, it is not possible.`

`verifier` compares these parts only if the whole answer differs. A sentence with a word that negates or limits states
nothing here. Runs in linear time. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .lexicon import CARDINALS, SCALES, word_set

MAX_CHARACTERS = 2_000
"""Longest text that is read as a sentence."""
_SPLIT = re.compile(r"\n+|(?<=[.!?])\s+(?=[A-Z\\$*])")
_MATH = re.compile(r"\$([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_REASON = re.compile(r"[,;]?\s+(?:since|because|as required|as expected)\b.*\Z", re.DOTALL)
_COPULA = re.compile(
    r"\s(?:is|are|was|were|be|equals|has|have|becomes|gives|yields)(?:\s+(?:equal\s+to|an?|exactly|about|approximately))?\s+"
)
_SYMBOL = re.compile(r"(?:the\s+)?\$?(\\?[A-Za-z]\w{0,3}(?:\([\w,]+\))?)\$?", re.IGNORECASE)
_DECISION = re.compile(
    r"(yes|no|true|false)\s*(?:[,.;:!\N{EM DASH}-]|because\b|since\b|as\b)(.*)", re.IGNORECASE | re.DOTALL
)
_NUMERAL = re.compile(
    r"(?:\\?\$\s?)?(?<![\w.^_/])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w^_/*+(=])(?:\s*\\?%|\s+[A-Za-z]+)?"
)
_LIMITS = word_set(
    "not no never none neither nor cannot wrong incorrect false except unless if or either maybe perhaps might could",
    "isn't aren't doesn't don't can't won't wasn't impossible unknown unclear between guess instead but however",
)
"""Words of a sentence that states no answer."""
_COMPARED = word_set(
    "least most than over under half twice times double triple above below fewer less percent",
)
"""Words next to the only number of a sentence that make it another number."""
_DETERMINERS = word_set("the these those all in over per every each last first next")


def statements(text: str) -> Iterator[str]:
    """Yield the parts of a text that its last sentence may state as the answer."""
    if len(text) > MAX_CHARACTERS:
        return
    decision = _DECISION.match(text)
    if decision and not re.search(r"\b(?:yes|no|true|false|but|however|maybe)\b", decision[2], re.IGNORECASE):
        yield decision[1]
    sentences = [part.strip() for part in _SPLIT.split(text) if part.strip(" \n*$")]
    if not sentences:
        return
    sentence = _REASON.sub("", sentences[-1]).rstrip(" .!")
    prose = len(re.findall(r"[A-Za-z]{2,}", text)) > 3
    if sentence != text.rstrip(" .!") and (prose or len(sentences) == 1):
        yield sentence
    outside = _BOLD.sub(" ", _MATH.sub(" ", sentence))
    terms = re.findall(r"[A-Za-z']+", outside)
    if sum(len(word) > 1 for word in terms) < 2 and not _COPULA.search(f" {sentence} "):
        return
    bold, math = _BOLD.findall(sentence), _MATH.findall(sentence)
    if _LIMITS.isdisjoint(word.lower() for word in terms):
        if len(bold) == 1:
            yield bold[0]
        yield from _predicates(sentence)
        if len(math) == 1 and not re.search(r"\d", outside):
            yield math[0][0] or math[0][1]
    yield from _only_number(sentence)


def _predicates(sentence: str) -> Iterator[str]:
    """Yield what follows the last verb, with a symbol before it as its label; or the subject of `Ann is the oldest`."""
    verbs = list(_COPULA.finditer(sentence))
    if not verbs:
        return
    subject, predicate = sentence[: verbs[-1].start()].strip(), sentence[verbs[-1].end() :].strip()
    symbol = _SYMBOL.fullmatch(subject)
    if symbol and re.search(r"\d", predicate):
        yield f"{symbol[1]} = {predicate}"
        return
    yield predicate
    agent = re.search(r"\bby ([A-Z].*)\Z", predicate)
    if agent:
        yield agent[1]
    if predicate.startswith("the ") and predicate.islower() and re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){0,2}", subject):
        yield subject


def _only_number(sentence: str) -> Iterator[str]:
    """Yield the only number of a sentence without formulas, with the word after it."""
    numerals = list(_NUMERAL.finditer(sentence))
    if len(numerals) != 1 or re.search(r"[=^+*/<>{}()]", sentence):
        return
    before = re.findall(r"[A-Za-z']+", sentence[: numerals[0].start()])
    after = re.findall(r"[A-Za-z']+", sentence[numerals[0].end() :])
    terms = [word.lower() for word in (*before, *after)]
    numbers = [at for at, word in enumerate(terms) if word in CARDINALS or word in SCALES]
    counted = any(not at or terms[at - 1] not in _DETERMINERS for at in numbers)
    own = re.findall(r"[A-Za-z]+", numerals[0][0])
    near = {word.lower() for word in (*before[-3:], *own)} | {word.lower() for word in after[:1]} & {"than", "times"}
    if len(terms) < 3 or counted or not (_LIMITS.isdisjoint(terms) and _COMPARED.isdisjoint(near)):
        return
    yield numerals[0][0].strip()
