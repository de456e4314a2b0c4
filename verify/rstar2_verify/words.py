"""Replaces phrases of English by the signs and sets that they mean, and reads numbers in words.

`grammar` applies `phrased` to the tokens before it parses them. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .lexicon import CARDINALS, HAN_NUMBERS, PARTS, PHRASES, SCALES, word_set
from .tokens import Token
from .tree import Node, integer

_PHRASE = re.compile(
    "|".join(f"(?P<_{at}>{phrase})" for at, phrase in enumerate(PHRASES.values())).join(("(?:", r")(?!\w)(?! of\b)"))
)
_MEANINGS = tuple(PHRASES)
_COUNTED = word_set("value score statistic test intercept intercepts coordinate coordinates axis component")
"""Words after a letter and a hyphen: `p-value`, `x-intercept`."""
_COMPASS = {name: word for word in ("north", "south", "east", "west") for name in (word, word[0])}
_DEGREES = frozenset(["\\circ", "\\degree", "degree", "degrees"])
_LONGEST = 9
"""Words of the longest phrase."""
_HAN = {"或": "or", "或者": "or", "和": "and", "且": "and"}
_COMMANDS = word_set("emptyset R Z positive negative nonnegative nonzero base bmod sqrt H_0 I even odd prime N")
_ENDINGS = frozenset(["th", "st", "nd", "rd"])
_IDENTITY = ["identity", "matrix"]
_SEQUENCES = {"fibonacci": "F", "lucas": "L", "catalan": "C", "harmonic": "H", "bell": "B", "prime": "p"}
"""Name of a sequence -> the letter of its terms."""
_NOTES = frozenset(["undefined", "infinitely many", "otherwise", "fail to reject"])


def phrased(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with signs and sets for phrases, without full stops and names of modules."""
    result: list[Token] = []
    at = 0
    while at < len(tokens):
        replaced, length = _replaced(tokens, at, result)
        result += replaced
        at += length
    return result


def _replaced(tokens: Sequence[Token], at: int, before: Sequence[Token]) -> tuple[list[Token], int]:
    """Return the tokens for those at a position, and how many they replace."""
    token, following, third = (tokens[min(at + step, len(tokens) - 1)] for step in range(3))
    if token.text == "." and token.kind == "sign":
        lettered = len(before) == 1 and before[0].kind == "letter" and before[0].text.upper() in "ABCDEFGHIJ"
        return [Token("sign", ":")] if lettered and following.kind != "end" else [], 1  # `E. A risk score`
    counted = following.kind == "word" and (following.text in PARTS or following.text in SCALES)
    if token.text in ("a", "A") and token.kind == "letter" and counted:
        return [Token("word", "one", token.gap, None, token.roman)], 1
    applied = following.text in ("(", "\\{", "{", "_", "[")
    if token.text in ("max", "min") and not applied and (token.roman or following.kind == "word"):
        return [token._replace(kind="word")], 1
    if token.kind == "word" and token.text in _HAN:
        return [Token("sign", _HAN[token.text], 1)], 1
    if token.kind == "letter" and following.text == "-" and third.text.lower() in _COUNTED:
        if tokens[min(at + 3, len(tokens) - 1)].text in ("<", ">", "<=", ">="):
            return [token], 3  # `p-value < 0.01`
        return [Token("word", f"{token.text}-{third.text.lower()}", token.gap, None, True)], 3
    if token.kind == "letter" and following.text == "-" and third.text in ("hat", "bar"):
        return [Token("command", third.text, token.gap), token._replace(gap=0)], 3
    chosen = before and (before[-1].kind in ("number", "letter") or before[-1].text == ")")
    if token.text == "choose" and chosen and following.kind in ("number", "letter"):
        return [Token("command", "choose", token.gap)], 1
    operand = not before or before[-1].text in ("(", "and", "or", "\\to", "\\iff")
    if token.text == "\\sim" and operand and following.kind == "letter":
        return [Token("command", "neg", token.gap)], 1  # `\sim p`
    if token.text == "m" and following.text == "angle":
        return [], 1
    if token.kind == "word" and token.text.lower() in ("angle", "triangle") and following.text.isupper():
        return [Token("command", token.text.lower(), token.gap)], 1
    if following.text in ("\\times", "x") and [other.text.lower() for other in tokens[at + 3 : at + 5]] == _IDENTITY:
        named = tokens[min(at + 5, len(tokens) - 1)].text == "I"
        return [Token("letter", "I", 1), Token("sign", "_"), third], 5 + named
    if following.text == "of" and {token.text.lower(), third.text.lower()} <= _COMPASS.keys():
        compass = (_COMPASS[token.text.lower()], "of", _COMPASS[third.text.lower()])
        return [Token("word", word, 1, None, True) for word in compass], 3  # `30° N of E`
    composed = _bearing(tokens, at) or _term(tokens, at)
    if composed:
        return composed
    length, meaning = _phrase(tokens, at)
    kind = "command" if meaning in _COMMANDS else "word" if meaning in _NOTES else "sign"
    return ([Token(kind, meaning, token.gap, None, kind == "word")], length) if length else ([token], 1)


def _bearing(tokens: Sequence[Token], at: int) -> tuple[list[Token], int] | None:
    r"""Return the tokens of `30^\circ east of north` for `N30^\circ E`, and how many they replace."""
    if tokens[at].text.lower() not in _COMPASS or tokens[min(at + 1, len(tokens) - 1)].kind != "number":
        return None
    ends = (end for end in range(at + 2, min(at + 8, len(tokens))) if tokens[end].text.lower() in _COMPASS)
    last = next(ends, 0)
    between = list(tokens[at + 1 : last])
    if _DEGREES.isdisjoint(token.text for token in between):
        return None
    directions = (_COMPASS[tokens[last].text.lower()], "of", _COMPASS[tokens[at].text.lower()])
    return [*between, *(Token("word", word, 1, None, True) for word in directions)], last + 1 - at


def _term(tokens: Sequence[Token], at: int) -> tuple[list[Token], int] | None:
    """Return the tokens of `F_{n+1}` for `(n+1)-th Fibonacci number`, and how many they replace."""
    end = at
    if tokens[at].text == "(":
        end = next((place for place in range(at, min(at + 8, len(tokens))) if tokens[place].text == ")"), at)
    elif tokens[at].kind != "letter":
        return None
    index = [token for token in tokens[at : end + 1] if token.text not in "()"]
    places = range(end + 1, min(end + 7, len(tokens)))
    name = next((at for at in places if tokens[at].kind == "word" and tokens[at].text not in _ENDINGS), end)
    ending = "".join(token.text for token in tokens[end + 1 : name]).strip("-^{}")
    letter = _SEQUENCES.get(tokens[min(name, len(tokens) - 1)].text.lower())
    if letter is None or ending not in _ENDINGS or not any(token.kind == "letter" for token in index):
        return None
    term = [Token("letter", letter, 1), Token("sign", "_"), Token("sign", "{"), *index, Token("sign", "}")]
    last = name + 1 + (tokens[name + 1].text == "number")
    repeated = [token.text for token in tokens[last : last + len(term)]] == [token.text for token in term]
    return term, last + len(term) * repeated - at


def _phrase(tokens: Sequence[Token], at: int) -> tuple[int, str]:
    """Return the number of tokens of the phrase at a position, and its meaning; 0 if there is none."""
    if tokens[at].kind != "word":
        return 0, ""
    run = []
    for token in tokens[at : at + _LONGEST]:
        if token.kind not in ("word", "letter") and token.text not in ("-", "or", "of"):
            break
        run.append(token.text.lower())
    match = _PHRASE.match(" ".join(run))
    return (match[0].count(" ") + 1, _MEANINGS[int((match.lastgroup or "")[1:])]) if match else (0, "")


def integer_family(tokens: Sequence[Token]) -> Node | None:
    """Return `6k, k in Z` for `all multiples of 6`, likewise `odd integers`, `powers of 2`; text for `all primes p`."""
    texts = [token.text.lower() if token.kind != "command" else "integers" for token in tokens if token.kind != "end"]
    kept = [text for text in texts if text not in _QUANTIFIERS and not (len(text) == 1 and text.isalpha())]
    word = next((text for table in (_CLASSES, _FAMILIES) for text in kept if text in table), "")
    if not word or len(kept) > 4:
        return None
    rest = [text for text in kept if text not in (word, "positive")]
    if word in _CLASSES:
        return Node("text", text=" ".join(sorted((_CLASSES[word], *rest)))) if all(map(str.isalpha, rest)) else None
    positive = "positive" in kept
    k, two = Node("name", text="k"), integer(2)
    if word in ("odd", "even") and not rest and len(texts) > 1:
        node = Node("mul", (two, k)) if word == "even" else Node("add", (Node("mul", (two, k)), integer(1)))
    elif word not in ("odd", "even") and len(rest) == 1:
        value = CARDINALS.get(rest[0], int(rest[0]) if rest[0].isdigit() and len(rest[0]) < 9 else None)
        if value is None:
            return None
        if word in _DIVISORS:
            divisors = [number for number in range(1, min(value, _MAX_DIVIDED) + 1) if value % number == 0]
            return Node("set", tuple(map(integer, divisors))) if 0 < value <= _MAX_DIVIDED else None
        if word.startswith("power"):
            return Node("pow", (integer(value), k))
        node = Node("mul", (integer(value), k))
    else:
        return None
    member = Node("relation", (k, Node("name", text="\\mathbb" + ("Z^+" if positive else "Z"))), "\\in")
    return Node("list", (node, member), "where")


_QUANTIFIERS = word_set("all every any the an of is are perfect integer integers number numbers set")
_CLASSES = {"prime": "prime", "primes": "prime", "composite": "composite"}
_DIVISORS = word_set("divisors factors")
_MAX_DIVIDED = 5000
"""Largest number whose divisors are listed."""
_FAMILIES = _DIVISORS | word_set("multiple multiples power powers odd even")


def is_number_word(token: Token) -> bool:
    """Return whether a number in words starts with a token."""
    word = token.text.lower()
    return token.kind == "word" and (word in CARDINALS or word in HAN_NUMBERS or word in ("half", "quarter"))


def spoken_number(tokens: Sequence[Token], at: int) -> tuple[Node, int] | None:
    """Return the number in words that starts at a position, and the position after it."""
    word = tokens[at].text.lower()
    if word in HAN_NUMBERS:
        return integer(HAN_NUMBERS[word]), at + 1
    if word in ("half", "quarter"):
        return _part(Node("number", number=Fraction(1)), PARTS[word]), at + 1
    whole, group, last, start = 0, 0, 0, at
    while tokens[at].kind in ("word", "sign"):
        word = tokens[at].text.lower()
        if word in ("-", "and") and at > start and tokens[at + 1].text.lower() in CARDINALS:
            if word == "and" and group % 100:
                break
            at += 1
            continue
        if word in SCALES and at > start:
            size = SCALES[word]
            if size == 100:
                group = (group or 1) * 100
            elif size in (12, 144, 20):
                group *= size
            elif not last or size < last:
                whole, group, last = whole + (group or 1) * size, 0, size
            else:
                break
        elif word in CARDINALS and tokens[at].kind == "word":
            value = CARDINALS[word]
            if at > start and not (group % 100 == 0 or (group % 100 >= 20 and group % 10 == 0 and 0 < value < 10)):
                return None
            group += value
        else:
            break
        at += 1
    number = integer(whole + group)
    following = tokens[at + 1] if tokens[at].text == "-" else tokens[at]
    if following.kind == "word" and following.text.lower() in PARTS:
        return _part(number, PARTS[following.text.lower()]), at + 1 + (tokens[at].text == "-")
    return number, at


def _part(top: Node, bottom: int) -> Node:
    return Node("div", (top, integer(bottom)))
