r"""Declarations at the end of an answer: `, \text{ where }k\text{ is an integer}`, `\text{ for all }x\in\mathbb{R}`.

`normalize` applies REWRITES. An integer parameter gets one notation, `k\in\mathbb{Z}`, which the package `equality`
reads. The domain of a function and the words "where C is a constant" are removed. Pure; standard library only. Each
pattern is anchored at the end of a text, which `verify.compare` keeps short.
"""

from __future__ import annotations

_TEXT = r"\\(?:text|mbox|textrm|mathrm)\s*\{\s*"
_WHERE, _ANY = "(?:where|with|for|if|and)", "(?:an?|any|some|all|every|each|arbitrary)"
_BODY, _END = r"(?<=[\w})\]!])\s*", r"\s*[.)]*\s*$"
_LETTER = "([j-np-t])"
_OPEN = rf"(?:[,;(]\s*(?:{_TEXT}{_WHERE}\s*\}}\s*)?|{_TEXT}[,(]?\s*{_WHERE}\s*\}}\s*|[,(]?\s{_WHERE}\s)"
_INTEGERS = [
    rf"{_OPEN}{_LETTER}\s*(?:{_TEXT}(?:is|be)?\s*{_ANY}?\s*integers?\s*\.?\s*\}}|(?:is|be)\s{_ANY}?\s*integers?)",
    rf"[,;(]?\s*{_TEXT}[,(]?\s*(?:{_WHERE}\s)?{_ANY}?\s*integers?\s*\}}\s*{_LETTER}",
    rf"[,;(]?\s*{_TEXT}[,(]?\s*(?:{_WHERE}\s)?{_ANY}?\s*integers?\s+{_LETTER}\s*[.)]*\}}",
    rf"[,;(]?\s*{_TEXT}[,(]?\s*{_WHERE}\s(?:{_ANY}\s)?{_LETTER}\s(?:is\s)?{_ANY}?\s*integers?\s*[.)]*\}}",
    rf"[,(]?\s{_WHERE}\s(?:{_ANY}\s)?integers?\s{_LETTER}",
    rf"[,;(]\s*{_LETTER}\s*=\s*0\s*,\s*\\pm\s*1\s*,\s*\\pm\s*2\s*,?\s*(?:\\[lc]?dots|\.\.\.)",
]
_CONSTANT = r"[A-DKa-dk](?:_\{?\d\}?)?"
_MEMBER = r"\\in\s*\\mathbb\s*\{?\s*[A-Z]\s*\}?(?:\s*[\^_]\s*(?:\{[^{}]*\}|[+-]))?"
_CONSTANTS = [
    rf"[,(]?\s*{_TEXT}[,(]?\s*(?:for|where|with)\s(?:{_ANY}\s)?(?:real\s|arbitrary\s)*constants?\s*\}}\s*{_CONSTANT}",
    rf"[,(]\s*(?:{_TEXT}(?:for|where|with)[^{{}}]*\}}\s*)?{_CONSTANT}\s*\\in\s*\\mathbb\s*\{{?\s*[RC]\s*\}}?",
    rf"[,(]?\s*{_TEXT}[,(]?\s*(?:for|where|with)[^{{}}]*\}}\s*{_CONSTANT}\s*{_TEXT}(?:is|are)[^{{}}]*constants?\s*\}}",
    rf"[,(]?\s*{_TEXT}[,(]?\s*where\s{_CONSTANT}\sis\s[^{{}}]*constant\s*\}}",
]
_FUNCTION = r"^(.*[a-zA-Z]\s*\(\s*([a-z])\s*\)\s*(?:=|\\equiv)\s*.*[\w})\]])\s*"
_FOR_ALL = r"for\s(?:all|any|every|each)(?:\sreal)?"
_ALL = rf"(?:{_TEXT},?\s*{_FOR_ALL}(?:\snumbers?)?\s*\}}|\\forall|,?\s{_FOR_ALL}\s)"
_DOMAINS = [
    rf"[,(]?\s*{_ALL}\s*\2\s*(?:{_MEMBER})?",
    rf"[,(]?\s*{_TEXT},?\s*{_FOR_ALL}(?:\snumbers?)?\s\2\s*\}}",
    rf"[,(]\s*\2\s*{_MEMBER}",
]
REWRITES = [
    (
        r"\\in\s*(?:\\math(?:rm|bf)\s*\{\s*([ZNR])\s*\}|\\([ZNR])(?![a-zA-Z])|([ZNR])(?![\w{]))",
        r"\\in\\mathbb{\1\2\3}",
    ),
    *[(_BODY + pattern + _END, r", \1\\in\\mathbb{Z}") for pattern in _INTEGERS],
    *[(_BODY + pattern + _END, "") for pattern in _CONSTANTS],
    (
        rf"^\s*{_TEXT}(?:[Aa]ll\s|[Aa]ny\s|[Tt]he\s)?[Ii]ntegers\s*\}}\s*([j-np-t])(\s*(?:[<>]|\\[lg]e(?![a-zA-Z]))[^,]*)$",
        r"\1\2, \1\\in\\mathbb{Z}",
    ),
    (r"^(\s*\(.*\))\s*[,;]\s*[a-z]\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*$", r"\1"),
    (
        r"^\s*([a-zA-Z]_\{?([nk])\}?\s*=.*[\w})\]])\s*(?:[,(]\s*|\s)"
        rf"(?:(?:{_TEXT}(?:for|where)(?:\sall)?\s*\}}|for(?:\sall)?\s)\s*)?\2\s*\\ge\s*[01]\s*[.)]*\s*$",
        r"\1",
    ),
    *[(_FUNCTION + pattern + _END, r"\1") for pattern in _DOMAINS],
]
"""(pattern, replacement), in this order."""
