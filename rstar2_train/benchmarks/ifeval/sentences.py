"""Counts the sentences of an English text for IFEval's instruction on their number.

Used by instruction_checkers.py. IFEval's own script downloads a trained model of NLTK. This module uses rules with the
same principle: a full stop ends a sentence, except after an abbreviation, an initial, a number or dots, where the next
word decides. Line breaks do not end a sentence. Pure; one pass over the words.
"""

from __future__ import annotations

import re

_CLOSING = ")]}\"'*_\N{RIGHT SINGLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}»"
_OPENING = "([{\"'*_\N{LEFT SINGLE QUOTATION MARK}\N{LEFT DOUBLE QUOTATION MARK}«#>-"
_SHORT = (
    "adm al apr approx apt assn aug ave blvd bros capt cf cmdr co col conf corp cpl dec dept dr ed esp est etc ext feb "
    "fig figs fri ft gen gov hon hr hrs inc jan jr jul jun lb lbs lt ltd maj max messrs min mon mr mrs ms mt nos nov "
    "oct oz para pl pp prof pt rep rev sec sen sep sept sgt sgts sq sr st ste tel thu thur thurs tue tues univ vol "
    "vols vs yr yrs"
)
_ABBREVIATIONS = frozenset(_SHORT.split())
_LETTERS = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]?")
"""`U.S`, `e.g`, `Ph.D`: the text before the last dot."""
_FIRST = (
    "a after all also although an and another any as at because before both but by despite during each even every "
    "finally first for from he her here his how however i if in instead it its just later many meanwhile more most my "
    "no not now of on once one or other our overall perhaps she since so some such that the their then there these "
    "they this those though through thus to today under until we what when where whether which while who why with "
    "yes yet you your"
)
_STARTERS = frozenset(_FIRST.split())
"""Words that, with a capital letter, are the start of a sentence rather than part of a name."""


def count_sentences(text: str) -> int:
    """Return the number of sentences in `text`; the text after the last end counts as a sentence."""
    tokens = text.split()
    count, open_ = 0, False
    for at, word in enumerate(tokens):
        following = tokens[at + 1].lstrip(_OPENING) if at + 1 < len(tokens) else ""
        bare = word.rstrip(_CLOSING)
        open_ = open_ or any(character.isalnum() for character in word)
        if bare.endswith(("!", "?")) or (bare.endswith(".") and _ends(bare, following)):
            count, open_ = count + 1, False
    return count + open_


def _ends(word: str, following: str) -> bool:
    """Return whether the full stop at the end of `word` ends a sentence; `following` is the next word."""
    before = word[:-1].lstrip(_OPENING)
    if not following:
        return True
    if before.endswith("."):  # dots
        return following[0].isupper()
    if before.isdigit():  # of a list, or the year at a sentence's end
        return not following[0].islower()
    initial = len(before) == 1 and before.isalpha() and before != "I"
    if initial or before.lower() in _ABBREVIATIONS or _LETTERS.fullmatch(before):
        return following[0].isupper() and not initial and re.sub(r"\W.*", "", following).lower() in _STARTERS
    return True
