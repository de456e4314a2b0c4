r"""Finds what a sentence states: `The pH is 4.76.`, `Janet has **104 hours** left.`, `No, it is not possible.`

`verifier` compares these parts only if the whole answer differs. A sentence with a word that negates or limits states
nothing here. Runs in linear time. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .lexicon import CARDINALS, SCALES, takes_argument, word_set
from .texts import opposed, opposed_directions

MAX_CHARACTERS = 2_000
"""Longest text that is read as a sentence."""
_SPLIT = re.compile(r"\n+|,\s+(?:so|thus|hence|therefore|i\.e\.,?)\s+|(?<=[.!?])\s+(?=[A-Z\\$*])")
_MATH = re.compile(r"\$([^$]+)\$|\\\(((?:(?!\\\)).)+)\\\)")
_BOLD = re.compile(r"(?<!`)(\*\*|`)((?:(?!\1).)+)\1")
"""Bold text, and code."""
_REASON = re.compile(
    r"[,;]?\s+(?:(?:since|because|as required|as expected|due to|according to|using|attained|achieved|which)\b"
    r"|by (?:the )?[\w' -]*\b(?:test|comparison|theorem|criterion|rule|law|symmetry|induction|definition)\b).*\Z",
    re.DOTALL,
)
_REMARK = re.compile(r"(?<=[a-z])\s\((?!and|but)[A-Za-z' -]+\)\Z")
"""A remark in words at the end: `The argument is valid (modus tollens)`."""
_PREMISE = re.compile(r"\A(?:since|because|as)\b[^,]{1,80},\s+", re.IGNORECASE)
_SET = re.compile(r"\bbetween\s.+\Z|(?<=\bis )[a-z]+(?: up| down)? (?:on|for) (?!\$?-?\d).+\Z")
"""A set of numbers at the end: `between 2 and 5`, `increasing for x < 1 or x > 3`."""
_COPULA = re.compile(
    r"(?:'s|\s(?:is|are|was|were|be|equals|has|have|becomes|gives|yields|choose|select))(?:\s+(?:equal\s+to|an?|exactly|about|approximately))?\s+"
)
_LEADING = re.compile(
    r"\A(?:after|in|at|for|during|with|on|by|since|if|when|within|over|of|from|given|among)\b[^,=]{1,80},\s+",
    re.IGNORECASE,
)
_TRAILING = re.compile(
    r"\s(?:in|after|over|during|for|at|per|within|on|from|when|if|of|by|while|with|to)\s(?=[^,=$]*\d)[^,=$]{1,60}\Z"
)
"""Circumstances with numbers of their own: `After 3 weeks, ...`, `... in 2 hours`."""
_CHAIN = re.compile(r"(?:[\d)}%]|[A-Za-z]{3,})\s*=\s*([^=]+)\Z")
_TERM = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}(?![A-Za-z}])")
_PREPOSITION = re.compile(r"\s(?:at|on|by|to|in|of)\s+(?:the\s+(?=\d)|an?\s+(?=[A-Z]))?(?=[\dA-Z$\\(])")
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
    "fail fails failed",
)
"""Words of a sentence that states no answer."""
_COMPARED = word_set(
    "least most than over under half twice times double triple above below fewer less percent up almost beyond within",
    "divisible",
)
"""Words next to the only number of a sentence that make it another number."""
_AFTER = word_set("than times more fewer less")
"""The same after the number."""
_DETERMINERS = word_set("the these those all in over per every each last first next")


def statements(text: str, known: str) -> Iterator[str]:
    """Yield the parts of a text that its last sentence may state as the answer, if no word opposes the known answer."""
    ours, theirs = (re.findall("[a-z]+", side.lower()) for side in (text, known))
    if len(text) > MAX_CHARACTERS or opposed(ours, theirs) or opposed_directions(ours, theirs):
        return
    decision = _DECISION.match(text)
    if decision and {*re.findall(r"\b(?:yes|no|true|false|but|however|maybe)\b", decision[2].lower())} <= {
        decision[1].lower()
    }:
        yield decision[1]
    sentences = [part.strip() for part in _SPLIT.split(text) if part.strip(" \n*$")]
    if not sentences:
        return
    sentence = _PREMISE.sub("", _REASON.sub("", sentences[-1])).rstrip(" .!")
    prose = len(re.findall(r"[A-Za-z]{2,}", text)) > 3
    if sentence != text.rstrip(" .!") and (prose or len(sentences) == 1):
        yield sentence
    main = _LEADING.sub("", sentence)
    for part in dict.fromkeys((sentence, main, _TRAILING.sub("", sentence), _TRAILING.sub("", main))):
        yield from _stated(part)


def _stated(sentence: str) -> Iterator[str]:
    """Yield the parts of a sentence, or of a sentence without its circumstances, that may be the answer."""
    outside = _BOLD.sub(" ", _MATH.sub(" ", sentence))
    terms = re.findall(r"[A-Za-z']+", outside)
    bold, math = [mark[2] for mark in _BOLD.finditer(sentence)], _MATH.findall(sentence)
    members = _SET.search(sentence)
    if members and (_LIMITS - {"between", "or"}).isdisjoint(word.lower() for word in terms):
        yield members[0]
    if _LIMITS.isdisjoint(word.lower() for word in terms):
        if len(bold) == 1:
            yield bold[0]
        if sum(len(word) > 1 for word in terms) < 2 and not _COPULA.search(f" {sentence} "):
            return
        yield from _predicates(sentence)
        if len(math) == 1 and not re.search(r"\d", outside):
            yield math[0][0] or math[0][1]
        chain = _CHAIN.search(sentence)
        if chain and len(_TERM.findall(sentence)) > 1 and _COMPARED.isdisjoint(word.lower() for word in terms):
            yield chain[1]
    yield from _only_number(sentence)


def _predicates(sentence: str) -> Iterator[str]:
    """Yield what follows the last verb, with a symbol before it as its label; or the subject of `Ann is the oldest`."""
    sentence = sentence if re.search(r"\d", sentence) else _REMARK.sub("", sentence)
    verbs = list(_COPULA.finditer(sentence))
    if not verbs:
        place = _PREPOSITION.search(sentence)
        before = sentence[: place.start()] if place else ""
        terms = re.findall("[a-z]+", sentence[: place.end()].lower()) if place else []
        if place and not (re.search(r"\d", before) or takes_argument(terms)) and _COMPARED.isdisjoint(terms):
            yield sentence[place.end() :]
        return
    subject, predicate = sentence[: verbs[-1].start()].strip(), sentence[verbs[-1].end() :].strip()
    symbol = _SYMBOL.fullmatch(subject)
    if symbol and re.search(r"\d", predicate):
        yield f"{symbol[1]} = {predicate}"
        if not re.fullmatch("[a-z]{3,}", symbol[1]) and "distributed" not in predicate:
            return
    yield predicate
    agent = re.search(r"\bby ([A-Z].*)\Z", predicate)
    if agent:
        yield agent[1]
    if predicate.startswith("the ") and predicate.islower() and re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){0,2}", subject):
        yield subject


def _only_number(sentence: str) -> Iterator[str]:
    """Yield the only number of a sentence without formulas, with the word after it."""
    numerals = [
        numeral
        for numeral in _NUMERAL.finditer(sentence)
        if sentence[: numeral.start()].rpartition(" ")[0].rpartition(" ")[2].lower() not in _DETERMINERS
    ]
    if len(numerals) != 1 or re.search(r"[=^+*/<>{}()]|\\[a-zA-Z]", sentence):
        return
    before = re.findall(r"[A-Za-z']+", sentence[: numerals[0].start()])
    after = re.findall(r"[A-Za-z']+", sentence[numerals[0].end() :])
    terms = [word.lower() for word in (*before, *after)]
    numbers = [at for at, word in enumerate(terms) if word in CARDINALS or word in SCALES]
    counted = any(not at or terms[at - 1] not in _DETERMINERS for at in numbers)
    own = re.findall(r"[A-Za-z]+", numerals[0][0])
    near = {word.lower() for word in (*before[-3:], *own)} | {word.lower() for word in after[:2]} & _AFTER
    leading = [word.lower() for word in before]
    if (
        len(terms) < 3
        or counted
        or takes_argument(leading)
        or not (_LIMITS.isdisjoint(terms) and _COMPARED.isdisjoint(near))
    ):
        return
    yield numerals[0][0].strip()
