"""Finds code blocks in the markup of HTML, MediaWiki, LaTeX and BBCode, and in calls written as XML. Pure.

`answer_program` reads them if an answer has no code fence; tags of other names if it has no block at all. Programs have
markup in their texts, and `[code]` as an index: a start neither follows a quotation mark or a name, nor lacks its end
unless it starts a line. One pass over the tags, linear in the text.
"""

from __future__ import annotations

import html
import re

_TAG = re.compile(
    r"<(?P<html_end>/?)(?P<html>pre|code|program|solution|python(?:_?code)?|syntaxhighlight|source|parameter)"
    r"(?P<html_options>[\s=][^<>]*+)?>"
    r"|\[(?P<bbcode_end>/?)(?P<bbcode>python|code)(?P<bbcode_options>[=\s][^\[\]]*+)?\]"
    r"|\\(?:(?P<latex_end>end)|[a-z]{5})\{(?P<latex>lstlisting|verbatim|minted|python|pycode|code)\*?\}"
    r"(?P<latex_options>(?:[\[{](?:[^\[\]{}\\\n]|\\.|\{(?:[^{}\\\n]|\\.)*+\})*+[\]}])*+)",
    re.IGNORECASE,
)
_NO_START = re.compile(r"[\w\"'(\[\])]")
"""Characters before a tag in a program."""
_LANGUAGE = re.compile(r"\blang(?:uage)?-(\w+)|\blanguage=\{?(\w+)|[{=\"'](\w+)[}\"']?\s*$", re.IGNORECASE)
_REFERENCE = re.compile(r"&(?:lt|gt|quot|apos|amp|nbsp|#\d{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
"""Only with a semicolon: `a&lt` is Python."""
_HIGHLIGHT = re.compile(r"</?span(?:\s[^<>]*+)?>", re.IGNORECASE)
_LINE_NUMBER = re.compile(
    r"<span\s(?=[^<>]*\b(?:hljs-ln|line-?no|linenos?|line-?num))[^<>]*+>\s*+\d{1,9}+\s*+</span>", re.IGNORECASE
)
_ROW = re.compile(r"(?<![\"'])<tr(?:\s[^<>]*+)?>(?P<cells>(?:(?!<tr[\s>]).)*?)</tr\s*>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<td(?:\s[^<>]*+)?>(?P<text>(?:(?!<td[\s>]).)*?)</td\s*>", re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r"</?(?:code|pre)(?:\s[^<>]*+)?>", re.IGNORECASE)
_MOST_BETWEEN = 32
"""Characters between a tag and the next one of its block."""
_LITERAL = re.compile(r"\s*<!\[CDATA\[(?P<text>.*?)\]\]>\s*", re.DOTALL)
"""A text of XML without references."""
_WRITTEN_SPAN = re.compile(r"[\"']<span", re.IGNORECASE)
"""A tag that a program has in a text, so that the tags are those of the program."""
_LINE_TAG = re.compile(r"(?m)^[ \t]*+<(?P<end>/?)(?P<name>[A-Za-z][\w-]*+)(?:[\s=][^<>\n]*+)?>[ \t]*+$")
"""A tag of any name on a line of its own."""
_BREAK = re.compile(r"(?<![\"'])<br\s*/?>", re.IGNORECASE)
_BREAK_AT_END = re.compile(r"(?<![\"'])<br\s*/?>(?=[ \t]*\n)", re.IGNORECASE)


def markup_blocks(text: str) -> list[tuple[str, str]]:
    """Return language (empty: not named) and text of each block. A block without an end goes to the end of the text."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    language, start = "", 0
    for tag in _TAG.finditer(text):
        name, is_end = _name(tag), bool(tag["html_end"] or tag["bbcode_end"] or tag["latex_end"])
        if is_end and opened and name == _name(opened):
            blocks.append((language, _content(text[opened.end() : tag.start()], opened)))
            opened = None
        elif not is_end and opened is None and not _NO_START.match(text[max(tag.start() - 1, 0) : tag.start()]):
            opened, language, start = tag, _language(tag), tag.start()
        elif not is_end and opened and opened["html"] and _is_next(opened, tag, text):
            opened, language = tag, _language(tag) or language
    if opened and not text[text.rfind("\n", 0, start) + 1 : start].strip():
        blocks.append((language, _content(text[opened.end() :], opened)))
    return blocks


def table_program(text: str) -> str:
    """Return the lines of a table with a line of code in the last cell of each row; empty: there is no such table."""
    rows = [_CELL.findall(row["cells"]) for row in _ROW.finditer(text)]
    return (
        "\n".join([*(_html_text(_CODE.sub("", row[-1])).strip("\n") for row in rows), ""])
        if len(rows) > 1 and all(rows)
        else ""
    )


def tagged_blocks(text: str) -> list[str]:
    """Return the text of each pair of tags of any name that are alone on their lines, of nested ones the innermost.

    Python may have such lines in its texts.
    """
    blocks: list[str] = []
    opened: re.Match[str] | None = None
    for tag in _LINE_TAG.finditer(text):
        if opened and tag["end"] and tag["name"] == opened["name"]:
            blocks.append(_html_text(text[opened.end() : tag.start()]))
        opened = None if tag["end"] else tag
    return blocks


def _is_next(opened: re.Match[str], tag: re.Match[str], text: str) -> bool:
    """Return whether a tag follows another, as `<code>` does `<pre>`, apart from an empty `<span>`."""
    distance = tag.start() - opened.end()
    return distance < _MOST_BETWEEN and not _HIGHLIGHT.sub("", text[opened.end() : tag.start()]).strip()


def _name(tag: re.Match[str]) -> str:
    return str(tag["html"] or tag["bbcode"] or tag["latex"]).lower()


def _language(tag: re.Match[str]) -> str:
    match = _LANGUAGE.search(tag["html_options"] or tag["bbcode_options"] or tag["latex_options"] or "")
    named = next(part for part in match.groups() if part).lower() if match else ""
    return named or ("python" if _name(tag).startswith("python") else "")


def _content(text: str, opened: re.Match[str]) -> str:
    return _html_text(text) if opened["html"] and _name(opened) != "parameter" else text


def _html_text(text: str) -> str:
    """Return a text of HTML without tags for line breaks and highlighting, and without references."""
    if literal := _LITERAL.fullmatch(text):
        return literal["text"]
    text = _LINE_NUMBER.sub("", text)
    text = _BREAK_AT_END.sub("", text) if "\n" in text.strip() else _BREAK.sub("\n", text)
    if not _WRITTEN_SPAN.search(text):
        text = _HIGHLIGHT.sub("", text)
    return unescaped(text)


def unescaped(text: str) -> str:
    """Return a text of HTML without references."""
    return _REFERENCE.sub(lambda match: html.unescape(match[0]).replace("\xa0", " "), text)
