r"""The checkers of IFEval, one per instruction: each returns whether a text follows the instruction.

Called by instructions.py, which parses the benchmark's files. The checkers implement the published definition (Zhou et
al. 2023, arXiv 2311.07911, and its script) with its peculiarities: a keyword counts inside a longer word, `---` is a
bullet point. Differences from the script: keywords and marks are literal, never patterns; a sign that is not a letter
is counted too (the script counts a random letter instead); sentences and words in capitals are found by rules
(sentences.py, `_CAPITALS`), not by a downloaded model.

The checkers run in the caller's process on text of a model, so all of them take linear time, and no pattern can
backtrack for long. Pure, except for reading the language profiles once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rstar2_train.benchmarks.ifeval.language import detect_language
from rstar2_train.benchmarks.ifeval.sentences import count_sentences

Kind = Literal["count", "text", "letter", "texts", "relation"]
"""Type of an argument: an integer from 0, a text, one character, a list of texts, or one of RELATIONS."""
RELATIONS = ("less than", "at least")
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")
_CAPITALS = re.compile(r"\w+(?:[-.\u2019/&]\w+)*")
"""A word; hyphens and dots do not split it, `I'm` is two words."""
_FIRST_WORD = re.compile(r"[^.,?!'\"]*")


@dataclass(frozen=True, slots=True)
class Checker:
    """The checker of one instruction."""

    follows: Callable[..., bool]
    """`follows(text, **arguments)`."""
    arguments: Mapping[str, Kind] = field(default_factory=dict)


def _related(count: int, relation: str, limit: int) -> bool:
    return count < limit if relation == RELATIONS[0] else count >= limit


def _occurrences(text: str, word: str) -> int:
    return len(re.findall(re.escape(word.strip()), text, re.IGNORECASE))


def _existence(text: str, *, keywords: Sequence[str]) -> bool:
    return all(_occurrences(text, word) for word in keywords)


def _frequency(text: str, *, keyword: str, frequency: int, relation: str) -> bool:
    return _related(_occurrences(text, keyword), relation, frequency)


def _forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def _letter_frequency(text: str, *, letter: str, let_frequency: int, let_relation: str) -> bool:
    return _related(text.lower().count(letter.lower()), let_relation, let_frequency)


def _response_language(text: str, *, language: str) -> bool:
    return detect_language(text) in (language, None)


def _number_sentences(text: str, *, num_sentences: int, relation: str) -> bool:
    return _related(count_sentences(text), relation, num_sentences)


def _number_words(text: str, *, num_words: int, relation: str) -> bool:
    return _related(len(re.findall(r"\w+", text)), relation, num_words)


def _number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Count the paragraphs between `***`; only the first and the last may be empty, and do not count then."""
    first, *rest = text.split("***")
    inner, last = rest[:-1], rest[-1:]
    if not all(part.strip() for part in inner):
        return False
    return sum(bool(part.strip()) for part in (first, *inner, *last)) == num_paragraphs


def _nth_paragraph_first_word(text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Find the n-th paragraph. The total excludes empty paragraphs; the index includes them."""
    paragraphs = text.split("\n\n")
    count = sum(bool(part.strip()) for part in paragraphs)
    if count != num_paragraphs or not 1 <= nth_paragraph <= count:
        return False
    tokens = paragraphs[nth_paragraph - 1].split()
    if not tokens:
        return False
    match = _FIRST_WORD.match(tokens[0].lstrip("'").lstrip('"'))
    return match is not None and match[0].lower() == first_word.lower()


def _number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """`[...]` on one line, from an opening bracket to the next closing one."""
    count = 0
    for line in text.split("\n"):
        opening = line.find("[")
        while opening >= 0 and (closing := line.find("]", opening)) >= 0:
            count += 1
            opening = line.find("[", closing)
    return count >= num_placeholders


def _postscript(text: str, *, postscript_marker: str) -> bool:
    marks = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    marker = postscript_marker.strip()
    return re.search(marks.get(marker, re.escape(marker.lower())), text.lower()) is not None


def _number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    lines = [line.lstrip() for line in text.split("\n")]
    count = sum(line.startswith("-") or (line.startswith("*") and line[1:2] not in ("", "*")) for line in lines)
    return count == num_bullets


def _constrained_response(text: str) -> bool:
    return any(option in text for option in _OPTIONS)


def _number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """`*...*` and `**...**` on one line with content."""
    sections = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(section.strip("*").strip()) for section in sections) >= num_highlights


def _multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def _json_format(text: str) -> bool:
    """Check that the whole text is JSON, possibly fenced by backticks."""
    inside = text.strip()
    for fence in _FENCES:
        inside = inside.removeprefix(fence)
    try:
        json.loads(inside.removesuffix("```").strip(), parse_int=str)  # avoids the conversion of very long numbers
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    """`<<...>>` on one line with content."""
    for line in text.split("\n"):
        opening, closing = line.find("<<"), line.rfind(">>")
        if 0 <= opening < closing - 2 and line[opening : closing + 2].lstrip("<").rstrip(">").strip():
            return True
    return False


def _two_responses(text: str) -> bool:
    """Check for two different responses separated by `******`; only the first and the last part may be empty."""
    parts = [part.strip() for part in text.split("******")]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def _repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _end_checker(text: str, *, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _capital_word_frequency(text: str, *, capital_frequency: int, capital_relation: str) -> bool:
    count = sum(word.isupper() for word in _CAPITALS.findall(text))
    return _related(count, capital_relation, capital_frequency)


def _english_capital(text: str) -> bool:
    return text.isupper() and detect_language(text) in ("en", None)


def _english_lowercase(text: str) -> bool:
    return text.islower() and detect_language(text) in ("en", None)


def _no_comma(text: str) -> bool:
    return "," not in text


def _quotation(text: str) -> bool:
    inside = text.strip()
    return len(inside) > 1 and inside.startswith('"') and inside.endswith('"')


CHECKERS: Mapping[str, Checker] = {
    "change_case:capital_word_frequency": Checker(
        _capital_word_frequency, {"capital_frequency": "count", "capital_relation": "relation"}
    ),
    "change_case:english_capital": Checker(_english_capital),
    "change_case:english_lowercase": Checker(_english_lowercase),
    "combination:repeat_prompt": Checker(_repeat_prompt, {"prompt_to_repeat": "text"}),
    "combination:two_responses": Checker(_two_responses),
    "detectable_content:number_placeholders": Checker(_number_placeholders, {"num_placeholders": "count"}),
    "detectable_content:postscript": Checker(_postscript, {"postscript_marker": "text"}),
    "detectable_format:constrained_response": Checker(_constrained_response),
    "detectable_format:json_format": Checker(_json_format),
    "detectable_format:multiple_sections": Checker(
        _multiple_sections, {"section_spliter": "text", "num_sections": "count"}
    ),
    "detectable_format:number_bullet_lists": Checker(_number_bullet_lists, {"num_bullets": "count"}),
    "detectable_format:number_highlighted_sections": Checker(_number_highlighted_sections, {"num_highlights": "count"}),
    "detectable_format:title": Checker(_title),
    "keywords:existence": Checker(_existence, {"keywords": "texts"}),
    "keywords:forbidden_words": Checker(_forbidden_words, {"forbidden_words": "texts"}),
    "keywords:frequency": Checker(_frequency, {"keyword": "text", "frequency": "count", "relation": "relation"}),
    "keywords:letter_frequency": Checker(
        _letter_frequency, {"letter": "letter", "let_frequency": "count", "let_relation": "relation"}
    ),
    "language:response_language": Checker(_response_language, {"language": "text"}),
    "length_constraints:nth_paragraph_first_word": Checker(
        _nth_paragraph_first_word, {"num_paragraphs": "count", "nth_paragraph": "count", "first_word": "text"}
    ),
    "length_constraints:number_paragraphs": Checker(_number_paragraphs, {"num_paragraphs": "count"}),
    "length_constraints:number_sentences": Checker(
        _number_sentences, {"num_sentences": "count", "relation": "relation"}
    ),
    "length_constraints:number_words": Checker(_number_words, {"num_words": "count", "relation": "relation"}),
    "punctuation:no_comma": Checker(_no_comma),
    "startend:end_checker": Checker(_end_checker, {"end_phrase": "text"}),
    "startend:quotation": Checker(_quotation),
}
"""The checker of each instruction by its id, with the argument names of the benchmark's files."""
