"""Finds code blocks in the markup of documents: reStructuredText, Org, AsciiDoc, Jira, YAML and indented text. Pure.

`answer_program` reads them if an answer has neither a code fence nor tags. Docstrings have such blocks too: inside
triple quotation marks there is none. One pass over the lines, linear in the text.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

_ORG = re.compile(r"[ \t]*+#\+begin_(?:src|example)\b[ \t]*+(?P<language>[\w+#-]*+).*", re.IGNORECASE)
_ORG_END = re.compile(r"[ \t]*+#\+end_(?:src|example)\b.*", re.IGNORECASE)
_ORG_ESCAPE = re.compile(r"^([ \t]*),(?=\*|#\+|,)")
"""The comma before a line that Org would read."""
_JIRA = re.compile(
    r"[ \t]*+\{(?:code|noformat)(?::(?:language=)?(?P<language>[\w+#-]*+)[^{}]*+)?\}[ \t]*+", re.IGNORECASE
)
_JIRA_END = re.compile(r"[ \t]*+\{(?:code|noformat)\}.*", re.IGNORECASE)
_ASCIIDOC = re.compile(r"\[source(?:%\w+)*+(?:,[ \t]*+(?P<language>[\w+#-]*+)[^\[\]]*+)?\][ \t]*+", re.IGNORECASE)
_ASCIIDOC_FRAME = re.compile(r"(?:-{4,}|\.{4,}|={4,})[ \t]*+")
_DIRECTIVE = re.compile(r"[ \t]*+\.\.[ \t]++(?:code-block|sourcecode|code)::[ \t]*+(?P<language>[\w+#-]*+).*")
_OPTION = re.compile(r"[ \t]++:[\w-]+:.*")
_YAML = re.compile(
    r"[ \t]*+(?:-[ \t]++)?+(?:(?:\w+_)?code|program|solution|script|python|source|content|answer|[\w./-]+\.py)"
    r"(?P<language>)[ \t]*+:[ \t]*+\|[-+\d]*+[ \t]*+",
    re.IGNORECASE,
)
"""A literal text of YAML."""
_SENTENCE = re.compile(r"(?:(?:[-*+]|\d++[.)])[ \t]++)?+(?P<word>[^\W\d]\w*+)[ ,].*[:.]")
_KEYWORDS = frozenset((*keyword.kwlist, *keyword.softkwlist))
"""First words of a line of Python that ends with a colon."""
_INDENTED = re.compile(r"(?: {4}|\t)")
_QUOTES = ('"' * 3, "'" * 3)
_TITLE = re.compile(r"\*\*[A-Z].*|[A-Z]\w*+(?: \w++)*+:(?: O\(.*)?")
"""`**Complexity:** O(n)`, `Time: O(n)`, or `Explanation:` on a line of its own."""
_ENDS_SENTENCE = (".", ":", "!", "\u3002", "\uff1a", "\uff01")
_BEFORE_TEXT = re.compile(r"[^\"'#(\[{]*+")
_TWO_WORDS = re.compile(r"(?<![\w.])([^\W\d]\w*+) (?=([^\W\d]\w*+))")
_MARKER = re.compile(r"[ \t]*+(?:[-*+]|\d++[.)])[ \t]++")
_RULE = re.compile(r"[ \t]*+(?:-{3,}|\*{3,})[ \t]*+")
_SIGN = re.compile(r"[^\w\s\x00-\x7f\ufeff]")
"""A sign such as a check mark, with which no line of Python starts."""
_WIDE_MARK = re.compile(r"[\u3001\u3002\uff0c\uff1a\uff01]")
"""A punctuation mark of Chinese or Japanese, which Python has only in texts."""


def document_blocks(text: str) -> list[tuple[str, str]]:
    """Return language (empty: not named) and text of each block. A block without an end goes to the end of the text."""
    blocks: list[tuple[str, str]] = []
    lines, at, is_quoted = text.split("\n"), 0, False
    while at < len(lines):
        line, at = lines[at], at + 1
        is_quoted ^= sum(map(line.count, _QUOTES)) % 2 == 1
        if is_quoted:
            continue
        if start := _ORG.fullmatch(line):
            code, at = _until(lines, at, _ORG_END.fullmatch)
            code = [_ORG_ESCAPE.sub(r"\1", written) for written in code]
        elif start := _JIRA.fullmatch(line):
            code, at = _until(lines, at, _JIRA_END.fullmatch)
        elif (start := _ASCIIDOC.fullmatch(line)) and at < len(lines) and _ASCIIDOC_FRAME.fullmatch(lines[at]):
            code, at = _until(lines, at + 1, re.compile(rf"{re.escape(lines[at].strip())}[ \t]*+").fullmatch)
        elif (start := _DIRECTIVE.fullmatch(line) or _YAML.fullmatch(line)) or (
            line.endswith("::") and not "".join(lines[at : at + 1]).strip()
        ):
            code, at = _indented(lines, at, _indent(line))
        elif _introduces_code(lines, at - 1):
            code, at = _indented(lines, at, 0)
        else:
            continue
        blocks.append(((start["language"] or "").lower() if start else "", "\n".join(code)))
    return blocks


def before_prose(lines: list[str]) -> list[str]:
    """Return the lines of a block without an end before a paragraph of prose, which no program has after its code.

    A paragraph follows an empty line, or its first line ends a sentence.
    """
    is_quoted = False
    for at, line in enumerate(lines):
        is_paragraph = at and (not lines[at - 1].strip() or line.rstrip().endswith(_ENDS_SENTENCE))
        if is_paragraph and not is_quoted and is_prose(line):
            return lines[:at]
        is_quoted ^= sum(map(line.count, _QUOTES)) % 2 == 1
    return lines


def is_prose(line: str) -> bool:
    """Return whether a line is a title, a rule, a sentence or an item of a list with a sentence.

    A sentence has two words in succession of which neither is a keyword; three words, if it starts with a small letter.
    """
    if _TITLE.fullmatch(line) or _RULE.fullmatch(line) or _SIGN.match(line):
        return True
    marker = _MARKER.match(line)
    start = _BEFORE_TEXT.match(line, marker.end() if marker else 0)
    text = start[0] if start else ""
    pairs = sum(_KEYWORDS.isdisjoint(pair) for pair in _TWO_WORDS.findall(text))
    return _WIDE_MARK.search(text) is not None or pairs >= (1 if text[:1].isupper() else 2)


def _introduces_code(lines: list[str], at: int) -> bool:
    """Return whether a sentence, an empty line and an indented line follow each other: no program has that."""
    sentence = _SENTENCE.fullmatch(lines[at])
    following = lines[at + 1 : at + 3]
    return (
        sentence is not None
        and sentence["word"] not in _KEYWORDS
        and len(following) == 2
        and not following[0].strip()
        and _INDENTED.match(following[1]) is not None
    )


def _until(lines: list[str], at: int, is_end: Callable[[str], object]) -> tuple[list[str], int]:
    """Return the lines from `at` up to the end of their block, and the position after it."""
    end = next((index for index in range(at, len(lines)) if is_end(lines[index])), len(lines))
    return lines[at:end], end + 1


def _indented(lines: list[str], at: int, columns: int) -> tuple[list[str], int]:
    """Return the lines from `at` that are empty or indented more than `columns`, without options; and the end."""
    while at < len(lines) and _OPTION.fullmatch(lines[at]):
        at += 1
    end = at
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > columns):
        end += 1
    return lines[at:end], end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
