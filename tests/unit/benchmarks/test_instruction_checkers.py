"""Every IFEval checker: texts that follow the instruction, texts that do not, and hostile texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rstar2_train.benchmarks.ifeval.instruction_checkers import CHECKERS
from rstar2_train.benchmarks.ifeval.language import detect_language
from rstar2_train.benchmarks.ifeval.sentences import count_sentences

HINDI = "दरवाज़ा हरे रंग का है और उसमें एक छोटी खिड़की है।"
ENGLISH = "the door is painted green and it has a small window through which the garden can be seen."
GERMAN = "Die Tür ist grün gestrichen und hat ein kleines Fenster, durch das man den Garten sehen kann."
AT_LEAST_2, LESS_THAN_2 = {"relation": "at least"}, {"relation": "less than"}

CASES: list[tuple[str, Mapping[str, Any], list[str], list[str]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["A NASA man", "I AM", "WELL-KNOWN FACTS", "I'm what I am", "3D and 2D"],
        ["", "One Nasa Man", "WELL-KNOWN", "100 200"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["none", "ONE"],
        ["ONE TWO"],
    ),
    ("change_case:english_capital", {}, [ENGLISH.upper()], [ENGLISH, "", "12", GERMAN]),
    ("change_case:english_lowercase", {}, [ENGLISH], [ENGLISH.upper(), ENGLISH.capitalize(), "", "12", GERMAN.lower()]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Do it. "},
        ["Do it.", "  do IT. Done."],
        ["I do it.", "Do it"],
    ),
    (
        "combination:two_responses",
        {},
        ["a******b", "******a\n******\nb******"],
        ["a", "a******a ", "a******b******c", "a************b", "******a"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] [b]", "[a][b][c]", "[][ ]", "[[a] b] [c]"],
        ["[a]", "[a [b]", "[a\n] [b]", "]["],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["a\nP.S. b", "p. s. b", "x p.s."],
        ["P.S b", "PS: b", ""],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S b", "p. p. s"], ["P.S. b"]),
    ("detectable_content:postscript", {"postscript_marker": "N.B."}, ["n.b. this"], ["nxbx"]),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "So: My answer is maybe. "],
        ["My answer is yes", "my answer is no.", "yes"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', '```json\n{"a": [1]}\n```', "``` 3 ```", '"text"', "9" * 5000],
        ["{'a': 1}", "", "here: {}", "[" * 100_000],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Day", "num_sections": 2},
        ["Day 1\na\nDay 2\nb", "Day1Day 2 Day 3", "xDay 1 Day 9"],
        ["Day 1", "DAY 1\nDAY 2", "Day one Day two"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n  * b", "- a\ntext\n* b", "---\n- a", "*a\n*b"],
        ["* a", "* a\n* b\n* c", "** a\n** b", "1. a\n2. b", ""],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** *b*", "*a* *b* *c*"],
        ["*a*", "*a\n* *b*", "** ** *a*", "a * b"],
    ),
    (
        "detectable_format:title",
        {},
        ["<<a>>", "x\n<<joy>> y", "<<<a>>>", "<< a > b >>"],
        ["<<>>", "<< >>", "<a>", "<<a\n>>", ">>a<<"],
    ),
    ("keywords:existence", {"keywords": ["red", "c++"]}, ["Reddish C++", "RED and c++"], ["red", "red c", "re d c++"]),
    ("keywords:forbidden_words", {"forbidden_words": ["red", "sky"]}, ["reddish", ""], ["Red.", "the SKY"]),
    ("keywords:frequency", {"keyword": "red ", "frequency": 2, **AT_LEAST_2}, ["red red", "Redred"], ["red", ""]),
    ("keywords:frequency", {"keyword": "red", "frequency": 2, **LESS_THAN_2}, ["red", ""], ["red reddish"]),
    (
        "keywords:letter_frequency",
        {"letter": "t", "let_frequency": 2, "let_relation": "less than"},
        ["", "Ta"],
        ["tT"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "at least"},
        ["#a #b"],
        ["#a b", "aaaa"],
    ),
    ("language:response_language", {"language": "de"}, [GERMAN, "123"], [ENGLISH]),
    (
        "language:response_language",
        {"language": "hi"},
        [HINDI],
        [GERMAN, ENGLISH],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        ["a\n\nWeekend, b", 'a\n\n\'"weekend" b', "a\n\nweekend!\n\n "],
        ["a\n\nthe weekend", "weekend\n\na", "a\n\nweekend\n\nb", "weekend", "a\n\nweekends", "\n\na\n\n\n\nweekend"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a***b", "***a\n***\nb***", "a *** b"],
        ["a", "a***b***c", "a******b", "a\n\nb", ""],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, **AT_LEAST_2},
        ["One. Two.", "Oh! Two", "a? b. c."],
        ["One.", "Dr. Smith came.", ""],
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, **LESS_THAN_2}, ["One", ""], ["One. Two."]),
    ("length_constraints:number_words", {"num_words": 3, **AT_LEAST_2}, ["a b c", "it's so"], ["a b", ""]),
    ("length_constraints:number_words", {"num_words": 3, **LESS_THAN_2}, ["a b"], ["well-known so"]),
    ("punctuation:no_comma", {}, ["a; b", "1.000"], ["a, b", "1,000"]),
    ("startend:end_checker", {"end_phrase": "Is that all?"}, ["a. is that ALL? ", '"x Is that all?"'], ["Is that all"]),
    ("startend:quotation", {}, ['"a"', ' "a\nb" ', '""'], ["a", '"a', '"', "“a”"]),
]


def test_cases_cover_every_checker() -> None:
    """Every checker and all of its arguments have cases in this test."""
    assert {name for name, *_ in CASES} == set(CHECKERS) and len(CHECKERS) == 25
    assert all(set(arguments) == set(CHECKERS[name].arguments) for name, arguments, *_ in CASES)


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES, ids=[name for name, *_ in CASES])
def test_checker_accepts_and_rejects(
    name: str, arguments: Mapping[str, Any], right: list[str], wrong: list[str]
) -> None:
    """Each checker accepts the texts that follow its instruction, and no others."""
    outcomes = {text: CHECKERS[name].follows(text, **arguments) for text in (*right, *wrong)}
    assert outcomes == dict.fromkeys(right, True) | dict.fromkeys(wrong, False)


HOSTILE = ["[", "<", "*", " ", "\n", "a", "a@", "P. ", "Day 1", '{"a":', "a.a", ".", "![", "https://a", "\u0301", "漢"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES, ids=[name for name, *_ in CASES])
def test_checker_is_linear_in_hostile_text(
    name: str, arguments: Mapping[str, Any], right: list[str], wrong: list[str]
) -> None:
    """A checker with quadratic time would exceed the timeout with the first text."""
    for piece in HOSTILE:
        length = 1_000_000
        assert CHECKERS[name].follows(piece * (length // len(piece)), **arguments) in (True, False)


def test_detect_language_is_deterministic() -> None:
    """The detector has a fixed seed; a text without letters has no language."""
    mixed = "No. Ja, nein, oui, si, no, yes. La la la."
    assert len({detect_language(mixed) for _ in range(20)}) == 1
    assert (detect_language(ENGLISH), detect_language(GERMAN), detect_language("12 + 3 = !")) == ("en", "de", None)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (" \n", 0),
        ("***", 0),
        ("Hello", 1),
        ("Hello.", 1),
        ("Hi! Who? Me.", 3),
        ("one. two.three. four", 3),
        ("Dr. Smith met J. R. Jones. They ate.", 2),
        ("So do I. We all do.", 2),
        ("It costs 3.50 dollars. Really?!", 2),
        ("The U.S. Army came. He left the U.S. The rest stayed.", 3),
        ("Fruit, e.g. apples, i.e. food.", 1),
        ("At 5 p.m. we met. At 6 p.m. It ended.", 3),
        ("1. Start here. 2. then continue.", 3),
        ("Wait... what? Wait... What?", 3),
        ('He called "Stop." She left (soon.) Then **he did too.** Yes.', 4),
        ("* a\n* b\n* c", 1),
        ("A line\nand a second one.\n\nThe end.", 2),
    ],
)
def test_count_sentences_of_english_text(text: str, count: int) -> None:
    """Abbreviations, initials, numbers and dots do not end a sentence."""
    assert count_sentences(text) == count
