r"""Compares the words of two answers: notes around values, answers that are words, and choices.

Words without meaning are ignored; words that change a value must be in both answers; of two words that exclude each
other both answers must have the same one. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from .lexicon import CARDINALS, DIRECTIONS, GROUPS, MODIFIERS, NEUTRAL, ORDINALS, SYNONYMS, word_set
from .tokens import Token
from .tree import Node, nodes
from .units import unit_of

_SENTENCE = word_set(
    "geometry molecular function functions graph series sequence figure shape matrix triangle's sum lies no-one person",
    "reaction process triangle quadrilateral hybridization hybridized hybridised statement we it direction",
    "condition toward towards wins winner winning strategy",
)
_PLACES: dict[str, list[tuple[int, int]]] = {}
"""Word -> its groups of words that exclude each other, and its place in them."""
for _group, _alternatives in enumerate(GROUPS):
    for _member, _alternative in enumerate(_alternatives):
        for _word in _alternative:
            _PLACES.setdefault(_word, []).append((_group, _member))
_WITHOUT_CONTENT = NEUTRAL | DIRECTIONS | _PLACES.keys()
_DROPPED = (NEUTRAL | _SENTENCE | {"th", "st", "nd", "rd"}) - DIRECTIONS
_IGNORED_SIGNS = frozenset(":()[]{}'\"?.&#@") | {"\\{", "\\}", "\\quad"}
_SUBJECTS = word_set("net force field current velocity acceleration friction magnetic electric particle object")
"""Words for what has a direction."""
_ANNOUNCING = word_set("statement statements option options choice choices only are correct true the answer answers is")
_MULTIPLICITY = re.compile(r"\bmultiplicity\b.*?=([1-9])$|\b(?:double|triple)\b")
"""A note on a member of a list: `1 (multiplicity 2)`, `1 (double root)`."""
_DECIDING = MODIFIERS | word_set("yes no true false")
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


def _plain_words(written: str) -> list[str]:
    return " ".join(SYNONYMS.get(word, word) for word in written.split()).split()


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 and not word.endswith("ss") else word


def compatible_notes(given: str, known: str) -> bool:
    """Return whether the words around two equal values do not make them differ."""
    if given == known:
        return True
    ours, theirs = _plain_words(given), _plain_words(known)
    if not same_meaning(ours, theirs):
        return False
    contents = [
        {_singular(word) for word in side if word not in _WITHOUT_CONTENT and unit_of(word) is None}
        for side in (ours, theirs)
    ]
    symbols = [{word for word in side if word.startswith("=")} for side in contents]
    if all(symbols) and symbols[0] != symbols[1]:
        return False
    return not (contents[0] and contents[1]) or bool(contents[0] & contents[1])


def same_meaning(given: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether the words that change a value agree."""
    ours, theirs = set(given), set(known)
    if ours & MODIFIERS != theirs & MODIFIERS or opposed(ours, theirs):
        return False
    return same_directions(given, known)


def same_directions(given: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether the words of directions agree: `north of east` is not `east of north`."""
    ours, theirs = ([word for word in side if word in DIRECTIONS] for side in (given, known))
    if not (ours and theirs) or ours == theirs:
        return True
    return "of" not in (*given, *known) and sorted(ours) == sorted(theirs)


def opposed_directions(given: Collection[str], known: Collection[str]) -> bool:
    """Return whether both answers have words of directions, and none in common."""
    sides = [{SYNONYMS.get(word, word) for word in side} & DIRECTIONS for side in (given, known)]
    return all(sides) and sides[0].isdisjoint(sides[1])


def opposed(given: Collection[str], known: Collection[str]) -> bool:
    """Return whether one of two words that exclude each other is in each answer: `gain` and `loss`."""
    first, second = (_members(side) for side in (given, known))
    return any(
        len(first[group]) == len(second[group]) and first[group] != second[group]
        for group in first.keys() & second.keys()
    )


def _members(side: Collection[str]) -> dict[int, set[int]]:
    """Return the members of the groups of excluding words: number of the group -> numbers of its members."""
    members: dict[int, set[int]] = {}
    for group, member in (place for word in side for place in _PLACES.get(word, ())):
        members.setdefault(group, set()).add(member)
    return members


def sentence(tokens: Sequence[Token]) -> list[str]:
    """Return the words of an answer that is words, in lower case and without words that have no meaning."""
    result: list[str] = []
    for at, token in enumerate(tokens):
        text = token.text
        number_follows = at + 1 < len(tokens) and tokens[at + 1].kind == "number"
        text = "," if text == ";" else text
        if token.kind == "sign" and (text in _IGNORED_SIGNS or (text == "-" and not number_follows)):
            continue
        word = text.lower()
        word = str(CARDINALS.get(word, ORDINALS.get(word, word)))
        if word == "emptyset":
            word = "none"
        if token.kind == "letter" and result and not token.gap and at and tokens[at - 1].kind == "letter":
            result[-1] += word
            continue
        result += _plain_words(word)
    kept = [word for word in result if word != "^" and ((len(word) == 1 and word != "a") or word not in _DROPPED)]
    kept = kept or result
    singular = [_singular(word) for word in kept]
    # `quadrants I and III` are `the first and third quadrant`
    if "quadrant" in singular and MODIFIERS.isdisjoint(kept):
        return sorted(str(_ROMAN.index(word.upper()) + 1) if word.upper() in _ROMAN else word for word in singular)
    while kept and kept[-1] == ",":
        kept.pop()
    kept = [word for at, word in enumerate(kept) if not (word == "," and kept[at + 1 : at + 2] in (["and"], ["but"]))]
    return ["and" if word == "," else SYNONYMS.get(word, word) for word in kept]


def same_sentences(given: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether two answers in words are the same."""
    if list(given) == list(known) or "".join(given) == "".join(known):
        return bool(known)
    if not any(mark.isascii() for side in (given, known) for word in side if word != "and" for mark in word):
        runs = ["".join(side).replace("and", "") for side in (given, known)]
        circled = not any(mark.isalpha() for run in runs for mark in run)
        return sorted(runs[0]) == sorted(runs[1]) if circled else runs[0] == runs[1]
    if not same_meaning(given, known):
        return False
    if known and DIRECTIONS.issuperset(known):
        return [word for word in given if word not in _SUBJECTS] == list(known)  # `The force points upward`
    if len(known) == 2 and all(len(word) > 2 for word in known) and not DIRECTIONS.issuperset(known):
        return sorted(given) == sorted(known)
    joined = "nor" if "neither" in known else "and"
    if joined in known and "or" not in (*given, *known):
        sides = [[_singular(word) for word in side if word != "neither"] for side in (given, known)]
        parts = [sorted(" ".join(side).split(f" {joined} ")) for side in sides]
        return parts[0] == parts[1] and len(parts[0]) > 1 and not set(known) & {"true", "false", "yes", "no"}
    counted = any(word.isdigit() for word in known)
    return counted and [_singular(word) for word in given] == [_singular(word) for word in known]


# Choices


def choice(tokens: Sequence[Token]) -> tuple[str, list[Token]] | None:
    """Return the letter of a choice and the tokens of its content; None for other answers."""
    body = [token for token in tokens if token.kind != "end"]
    while body and body[0].kind == "word" and body[0].text.lower() in (
        "option", "choice", "answer", "the", "correct", "is", "final", "therefore", "thus", "so", "hence", "statement"
    ):  # fmt: skip
        body = body[1:]
    if [token.text for token in body[:2]] == ["{", "("] and len(body) > 4 and body[4].text == "}":
        body = [*body[1:4], *body[5:]]
    texts = [token.text for token in body[:4]]
    if texts[:1] == ["("] and len(texts) > 2 and _is_letter(body[1]) and texts[2] == ")":
        return texts[1].upper(), _content(body[3:])
    if body and _is_letter(body[0]):
        if len(body) == 1:
            return texts[0].upper(), []
        if texts[1] in (")", ":") or (texts[1] == "-" and body[1].gap and len(body) > 2 and body[2].gap):
            return texts[0].upper(), _content(body[2:])
        if (body[0].roman or body[1].roman) and texts[1] == "(" and body[-1].text == ")":
            return texts[0].upper(), _content(body[2:-1])
    return None


def _content(tokens: list[Token]) -> list[Token]:
    while tokens and tokens[0].kind == "sign" and tokens[0].text in (":", ",", "\\quad"):
        tokens = tokens[1:]
    return tokens


def _is_letter(token: Token) -> bool:
    return token.kind == "letter" and token.text.upper() in "ABCDEFGHIJ"


def names_another_choice(content: Sequence[Token]) -> bool:
    """Return whether the content of a choice has the mark of another choice."""
    for at, token in enumerate(content):
        if not _is_letter(token) or not token.text.isupper():
            continue
        before = content[at - 1].text if at else ""
        last = at == len(content) - 1
        if last and (not at or before in ("or", "and", ",")):
            return True
        if not last and before == "(" and content[at + 1].text == ")":
            return True
    return False


def choices(tokens: Sequence[Token]) -> tuple[list[str], bool] | None:
    """Return the letters or Roman numerals that an answer lists, and whether `and` or commas join them."""
    listed: list[str] = []
    joined = False
    for token in tokens:
        text = token.text
        if token.kind == "sign" and text in ("(", ")", ",", "and", "{", "}", "\\{", "\\}", "&", "\\quad"):
            joined = joined or text in (",", "and")
            continue
        if token.kind == "letter" and text in "ABCDEFGHIVX":
            listed.append(text)
        elif token.kind == "word" and (text in _ROMAN or re.fullmatch("[A-H]{2,8}", text)):
            listed += [text] if text in _ROMAN else list(text)
        elif token.kind != "end" and text.lower() not in _ANNOUNCING:
            return None
    letters = all(len(item) == 1 and item in "ABCDEFGH" for item in listed)
    if len(listed) < 2 or len(set(listed)) < len(listed) or not (letters or {*listed} <= {*_ROMAN}):
        return None
    return listed, joined


def _has_remark(node: Node) -> bool:
    """Return whether a list is a value and words around it with commas: `8 m/s, east`, `linear time, O(n)`."""
    return (
        node.kind == "list"
        and set(node.text.split()) == {","}
        and [part.kind != "text" for part in node.parts].count(True) == 1
        and node.parts[0].kind != "relation"
        and _DECIDING.isdisjoint(" ".join(part.text for part in node.parts if part.kind == "text").lower().split())
    )


def unnoted(node: Node) -> tuple[Node, str]:
    """Return a value without the words around it, and the words."""
    notes = []
    while node.kind == "noted" or _has_remark(node):
        written = [part.text for part in node.parts if part.kind == "text"]
        notes.append(node.text if node.kind == "noted" else " ".join(written).lower())
        node = next((part for part in node.parts if part.kind != "text"), node.parts[0])
    return node, " ".join(notes)


def words_around(node: Node) -> list[str]:
    """Return the words around the values of an answer, and the words for its labels."""
    sources = (part for part in nodes(node) if part.kind in ("noted", "relation"))
    written = " ".join((part.parts[0] if part.text == "=" else part).text for part in sources)
    return _plain_words(written.replace("\\", ""))


def repeated(members: Sequence[Node]) -> list[Node]:
    """Return the members of a list, those with a multiplicity as often as it states: `1 (multiplicity 2)`."""
    counts = [_MULTIPLICITY.search(member.text) if member.kind == "noted" else None for member in members]
    return [
        node
        for member, count in zip(members, counts, strict=True)
        for node in ([unnoted(member)[0]] * int(count[1] or 2 + (count[0] == "triple")) if count else [member])
    ]


def with_common_note(node: Node) -> Node:
    """Return `increasing on` around the list `(0,1) and (2,3)`, whose first member has the words; else the node."""
    noted = [part.kind == "noted" for part in node.parts]
    if node.kind != "list" or noted != [True, False] or node.parts[1].kind not in ("tuple", "interval", "relation"):
        return node
    first, second = node.parts
    if _MULTIPLICITY.search(first.text):
        return node
    return first._replace(parts=(node._replace(parts=(*first.parts, second)),))
