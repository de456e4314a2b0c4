"""Decides whether an answer equals a known answer: reads both into typed values and compares them.

`verify` is the whole interface. It never raises for a text, and its work is bounded by the length of the texts, the
depth of their values, and the digits and terms of a computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from .alike import alike
from .chemistry import same_formulas
from .compare import same_answer
from .dates import same_moments
from .extract import final_answer
from .grammar import Reading, parse, tokenized
from .lexicon import KNOWN_WORDS, MATH_WORDS, SCALES
from .preparation import (
    after_label,
    differentials,
    has_components,
    has_unit_vector,
    unknown_functions,
    without_part_labels,
)
from .sentences import statements
from .shapes import as_tuple
from .texts import choice, choices, names_another_choice, same_directions, same_sentences, sentence, words_around
from .tokens import Token
from .tree import Node, ParseError, Undecided
from .words import is_number_word

Outcome = Literal["equal", "different", "undecided"]
MAX_EXTRA_CHARACTERS = 1024
"""An answer with this many more characters than the known one is different."""
MAX_CHARACTERS = 20_000
"""Longest text that is read."""
MAX_TEXT = 100_000
"""Longest text in which an answer is looked for."""
_HEXADECIMAL = re.compile(
    r"\(?(?:0x)?(?P<digits>[0-9A-Fa-f]{1,64})\)?"
    r"\s*(?P<base>_\{?(?:\\text\{)?(?:16|hex|sixteen)\}{0,2}|\(?(?:(?:in )?base (?:16|sixteen)|hex(?:adecimal)?)\)?)?"
)
_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)
_WORD = re.compile(r"\\(?:text|textrm|textit|textbf|mbox|mathrm|mathit|operatorname)\s*\{\s*([A-Za-z]{2,})\s*\}")
_DECIMAL_COMMA = re.compile(
    r"(?<![\d,])\d+(?:[. ]\d{3})+(?:,|\{,\})\d|(?<![\d,])\d+(?:,(?!\d\s*\Z)|\{,\})(?!\d{3}(?!\d))\d"
    r"|(?<![\d,])0(?:,|\{,\})\d"
)
"""A comma that is no mark of thousands. `3,5` at the end is a list; `0,5`, `3{,}5`, `3,50` and `3,5 m` are decimals."""
_MARK = re.compile(r"\{,\}|(?<=\d),(?=\d{3}(?!\d))")
_THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")
_DIVISION = re.compile(r"/\s*[\w\\]")
_FONT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
_BLANK = re.compile(r"(?<!\d)\s+|\s+(?!\d)|\$")


class Verdict(NamedTuple):
    """The decision on an answer."""

    outcome: Outcome
    reason: str
    known: Node | None = None
    """Typed value of the known answer; None if the grammar does not cover it."""
    answer: Node | None = None


def verify(known: str, answer: str, kind: str | None = None) -> Verdict:
    """Return whether an answer equals the known answer.

    `kind`: `choice` compares letters of choices only, `text` words only; None takes the type of the known answer.
    """
    if answer.strip() == known.strip():
        return Verdict("equal", "the texts are the same")
    if len(answer) <= MAX_TEXT:
        known, answer = final_answer(known), final_answer(answer)
    if len(answer) > len(known) + MAX_EXTRA_CHARACTERS or len(known) > MAX_CHARACTERS:
        return Verdict("different", "the answer is over 1,024 characters longer than the known answer")
    if _NUMBER.fullmatch(known) and _NUMBER.fullmatch(answer):
        equal = _digits(known) == _digits(answer)
        return Verdict("equal" if equal else "different", "both are integers")
    verdict = _compared(known, answer, kind)
    around = [words_around(side) for side in (verdict.known, verdict.answer) if side is not None]
    if verdict.outcome == "equal" or (len(around) == 2 and not same_directions(*around)):
        return verdict
    stated = (_compared(known, final_answer(part), kind) for part in statements(answer, known))
    return next((other for other in stated if other.outcome == "equal"), verdict)


def _compared(known: str, answer: str, kind: str | None) -> Verdict:
    """Return the verdict on two answers, within the limits of a comparison."""
    try:
        return Comparison(known, answer).verdict(kind)
    except (Undecided, RecursionError, MemoryError, OverflowError, ValueError):
        return Verdict("undecided", "the values agree within the limits of the computation, which proves nothing")


def is_choice(text: str) -> bool:
    """Return whether a text is the letter of a choice, such as `B`, `(B)` or `B. Paris`."""
    tokens = Comparison.tokens(final_answer(text))
    return tokens is not None and choice(tokens) is not None


def _digits(text: str) -> str:
    digits = text.lstrip("+-0")
    return "-" * (text[0] == "-" and digits != "") + digits


class Comparison:
    """Two answers that are compared in each reading."""

    def __init__(self, known: str, answer: str) -> None:
        self.known, self.answer = known, answer
        self.values: tuple[Node | None, Node | None] = (None, None)
        self.compared: list[tuple[Node, Node]] = []

    def verdict(self, kind: str | None) -> Verdict:
        """Return the decision of the first reading in which both are equal."""
        moments = same_moments(self.known, self.answer) if kind is None else None
        if moments is not None:
            return Verdict("equal" if moments else "different", "dates or times of day")
        numerals = [_HEXADECIMAL.fullmatch(text) for text in (self.known, self.answer)]
        if numerals[0] and numerals[0]["base"] and not numerals[0]["digits"].isdigit() and numerals[1]:
            digits = [numeral["digits"].upper().lstrip("0") for numeral in numerals if numeral]
            return Verdict("equal" if digits[0] == digits[1] else "different", "numerals of base 16")
        sides = [self.tokens(text) for text in (self.known, self.answer)]
        if None in sides:
            equal = _bare(self.known) == _bare(self.answer)
            return Verdict("equal" if equal else "different", "the texts have characters that no answer has")
        known, answer = sides[0] or [], sides[1] or []
        decided = self._choices(known, answer)
        if decided is not None:
            return Verdict("equal" if decided else "different", "choices", *self.values)
        if kind == "choice":
            return Verdict("different", "the known answer or the answer is no choice")
        formulas = same_formulas(self.known, self.answer) if kind is None else None
        if formulas is not None:
            return Verdict("equal" if formulas else "different", "chemical formulas")
        if is_text(known) or kind == "text":
            if same_sentences(sentence(answer), sentence(known)):
                return Verdict("equal", "the words are the same")
            if kind == "text":
                return Verdict("different", "the words differ")
        undecided = False
        for reading in self.readings(known, answer):
            try:
                if self._equal_in(reading):
                    return Verdict("equal", "the values are equal", *self.values)
            except Undecided:
                undecided = True
        if undecided:
            raise Undecided
        if self.values[0] is None:
            equal = same_sentences(sentence(answer), sentence(known))
            if self.values[1] is not None and not equal:
                return Verdict("different", "the values differ", *self.values)
            return Verdict("equal" if equal else "different", "both are compared as words", *self.values)
        return Verdict("different", "the values differ", *self.values)

    @staticmethod
    def tokens(text: str) -> list[Token] | None:
        try:
            return tokenized(text, Reading())
        except ParseError:
            return None

    def _choices(self, known: list[Token], answer: list[Token]) -> bool | None:
        """Compare letters of choices; None if the known answer is no choice."""
        listed = choices(known[:-1])
        if listed is not None:
            ours = choices(answer[:-1])
            if ours is None:
                return None
            letters, joined = listed
            together = any(token.text == "and" for token in known)
            if ours[0] == letters or (letters != sorted(letters) and not together):
                return ours[0] == letters
            if together or (joined and ours[1]):
                return sorted(ours[0]) == sorted(letters)
            return False if joined or len(letters) > 4 else None
        mark = choice(known)
        if mark is None or len(without_part_labels(known)) != len(known):
            return None
        letter, content = mark
        ours_mark = choice(answer)
        if ours_mark is None:
            return None
        given, rest = ours_mark
        if {known[0].text, answer[0].text} == {"I", "i"} or (known[0].text.islower() and known[0].text == self.known):
            return None  # a name, and no choice
        if names_another_choice(rest):
            return False
        if content and rest:
            return given == letter and self._same_content(content, rest)
        return given == letter

    def _same_content(self, known: list[Token], answer: list[Token]) -> bool:
        end = Token("end", "")
        try:
            return same_answer(parse([*answer, end], Reading()), parse([*known, end], Reading()))
        except ParseError:
            return same_sentences(sentence([*answer, end]), sentence([*known, end]))

    def readings(self, known: list[Token], answer: list[Token]) -> Iterator[Reading]:
        """Yield the ways to read ambiguous texts, in both answers alike."""
        texts = self.known, self.answer
        written = {word for text in texts for word in _WORD.findall(text)}
        names = {word for word in written if not word.islower() and word.lower() not in KNOWN_WORDS} - MATH_WORDS.keys()
        compounds = tuple(sorted(names, key=len, reverse=True))
        derived = {letter for side in (known, answer) for letter in unknown_functions(side)}
        vectors = any(has_unit_vector(side) for side in (known, answer)) or has_components(known, answer)
        for units in (True, False):
            reading = Reading(compounds, derived, vectors=vectors, units=units)
            yield reading
            if any(_DIVISION.search(text) for text in texts):
                yield reading._replace(tight=True)
            if any(_THOUSANDS.search(text) for text in texts):
                yield reading._replace(commas=";")
            if _DECIMAL_COMMA.search(self.answer) and "," not in _MARK.sub("", self.known):
                yield reading._replace(commas=".")
            if not any(token.kind == "letter" for side in (known, answer) for token in side):
                break

    def _equal_in(self, reading: Reading) -> bool:
        known, answer = (self.value(text, reading) for text in (self.known, self.answer))
        if reading.commas == ",":
            self.values = known, answer
        if known is None or answer is None:
            return False
        if (known, answer) in self.compared:
            return False
        self.compared.append((known, answer))
        if not reading.units and (known.kind == "quantity") != (answer.kind == "quantity"):
            return False  # a missing unit, and letters that may be one
        if reading.commas == ";":
            known, answer = as_tuple(known), as_tuple(answer)
        known, answer = alike(known, answer, self.known, self.answer)
        return same_answer(answer, known) or self._choice_content(known, answer, reading)

    def _choice_content(self, known: Node, answer: Node, reading: Reading) -> bool:
        """Compare an answer with the content of a known choice, such as `355` with `(B) 355`, and the reverse."""
        tokens = tokenized(self.known, reading), tokenized(self.answer, reading)
        marks = choice(tokens[0]), choice(tokens[1])
        end = Token("end", "")
        try:
            if marks[0] and marks[0][1] and not marks[1]:
                return same_answer(answer, parse([*marks[0][1], end], reading))
            bracketed = tokens[1][0].text == "(" or tokens[1][0].roman
            if marks[1] and marks[1][1] and not marks[0] and bracketed:
                return same_answer(parse([*marks[1][1], end], reading), known)
        except ParseError:
            return False
        return False

    def value(self, text: str, reading: Reading) -> Node | None:
        try:
            tokens = tokenized(text, reading)
        except ParseError:
            return None
        tokens = without_part_labels(differentials(tokens, reading.derived))
        try:
            return parse(tokens, reading)
        except ParseError:
            pass
        rest = after_label(tokens)
        if rest is None:
            return None
        try:
            return Node("relation", (Node("name", text="label"), parse(rest, reading)), "=")
        except ParseError:
            return None


def _bare(text: str) -> str:
    return _BLANK.sub("", _FONT.sub(r"\1", text))


def is_text(tokens: list[Token]) -> bool:
    """Return whether a known answer is words only."""
    texts = [token for token in tokens if token.kind == "word"]
    allowed = all(
        token.kind in ("word", "end")
        or (token.kind == "letter" and (token.roman or len(texts) > 0))
        or (token.kind == "sign" and token.text in (",", "and", "or", "-", "'", ":", "(", ")"))
        or (token.kind == "number" and (len(texts) > 1 or tokens[1].text == "-"))  # `2-methylpropane`
        or token.text == "emptyset"
        for token in tokens
    )
    brackets = any(token.text == "(" for token in tokens) and any(token.kind == "number" for token in tokens)
    return (
        allowed
        and bool(texts)
        and not brackets
        and not all(is_number_word(word) or word.text.lower() in SCALES for word in texts)
    )
