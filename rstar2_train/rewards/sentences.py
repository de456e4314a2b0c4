"""Counts the sentences of a text in English: what IFEval's instruction on their number is about.

Used by instruction_checkers.py. IFEval's own script asks a trained model of NLTK, which is downloaded when it runs.
These are rules instead, after the same principle: a full stop ends a sentence unless it belongs to an abbreviation, an
initial, a number or dots, and there the next word decides. Line breaks end nothing. Pure; one pass over the words.
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
"""`U.S`, `e.g`, `Ph.D`: what stands before the last dot."""
_FIRST = (
    "a after all also although an and another any as at because before both but by despite during each even every "
    "finally first for from he her here his how however i if in instead it its just later many meanwhile more most my "
    "no not now of on once one or other our overall perhaps she since so some such that the their then there these "
    "they this those though through thus to today under until we what when where whether which while who why with "
    "yes yet you your"
)
_STARTERS = frozenset(_FIRST.split())
"""Words that, with a capital letter, begin a sentence rather than stand in a name."""


def count_sentences(text: str) -> int:
    """Sentences in `text`; what is left behind the last end counts as one."""
    words = text.split()
    count, open_ = 0, False
    for at, word in enumerate(words):
        following = words[at + 1].lstrip(_OPENING) if at + 1 < len(words) else ""
        bare = word.rstrip(_CLOSING)
        open_ = open_ or any(character.isalnum() for character in word)
        if bare.endswith(("!", "?")) or (bare.endswith(".") and _ends(bare, following)):
            count, open_ = count + 1, False
    return count + open_


def _ends(word: str, following: str) -> bool:
    """Whether the full stop at the end of `word` ends a sentence, when the word `following` is the next one."""
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
