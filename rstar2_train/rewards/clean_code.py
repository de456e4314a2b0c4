"""Removes what surrounds or encodes a program: its file name, prompts, magics, references of HTML, prose. Pure.

Each step applies only while the text is no Python, so that a program which can run stays as it is. The first line is
an exception: a name such as `main.py` or `python` alone is an expression, which fails in each program.
"""

from __future__ import annotations

import re
import symtable
from collections.abc import Callable

from rstar2_train.rewards.document_blocks import before_prose, is_prose
from rstar2_train.rewards.markup_blocks import unescaped

_NAME = re.compile(
    r"(?:%%writefile[ \t]++(?:-a[ \t]++)?\S++"
    r"|(?:(?:file(?:name)?|path):[ \t]*+)?[*`=-]*+[ \t]*+[\w./-]+\.py[ \t]*+[*`=-]*+:?"
    r"|(?:python|py)[\d.]*+|(?:python)?[ \t]*+copy(?:[ \t]code)?)[ \t]*",
    re.IGNORECASE,
)
"""A line before a program: its file, its language, or the button of a chat window."""
_MOST_NAMES = 3
_PROMPT = re.compile(r"(?:>>> ?|\.\.\.(?: |$)|In \[\d*+\]: ?|[ \t]*+\.\.\.: ?)(?P<code>.*)")
SESSION = re.compile(r"\s*(?:>>>|In \[\d*+\]:)")
"""Start of a session at a prompt, which is no program."""
_END = re.compile(r"\n[ \t]*+(?:`{3,}|~{3,})\s*+$")
_REPLACED = re.compile(r"\s*+<{5,9} SEARCH\s*+={5,9}\n(?P<code>.*?)>{5,9} REPLACE\s*+", re.DOTALL)
"""An edit that replaces nothing, so that its code is the whole file."""
_END_TOKEN = re.compile(
    r"<\|[^\s|<>]{1,40}\|>|<\uff5c[^\s\uff5c<>]{1,40}\uff5c>|</s>|<eos>|<(?:end|start)_of_turn>|\[/?INST\]"
)
"""The text of a token that ends a turn or a text."""
_START_TOKENS = re.compile(r"(?:\s*+(?:<\|channel\|>final<\|message\|>|<\|[^\s|<>]{1,40}\|>))++")
_INVISIBLE = re.compile(r"[\xad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
_MAGIC = re.compile(r"[%!]{1,2}[A-Za-z].*")


def clean_code(code: str) -> str:
    """Return the program in a text; the text itself, without a name in its first line, if no step makes it Python."""
    code = _without_name(code)
    if is_python(code):
        return code
    text = code
    for step in _STEPS:
        before, text = text, step(text)
        if text != before and is_python(text):
            return text
    return code


def is_python(text: str) -> bool:
    """Return whether a text that is not empty is Python by its syntax."""
    try:
        return bool(text.strip()) and bool(symtable.symtable(text, "<answer>", "exec"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _without_name(code: str) -> str:
    """Return the code without names in its first lines."""
    for _ in range(_MOST_NAMES):
        first, _, rest = code.lstrip("\n").partition("\n")
        if not rest.strip() or not _NAME.fullmatch(first):
            break
        code = rest
    return code


def _without_prompts(code: str) -> str:
    """Return the inputs of a session at a prompt of Python or IPython."""
    if not SESSION.match(code):
        return code
    matches = map(_PROMPT.fullmatch, code.split("\n"))
    return "".join(f"{match['code']}\n" for match in matches if match)


def _without_magics(code: str) -> str:
    """Return the code without lines for a notebook, such as `!pip install numpy`."""
    return "\n".join(line for line in code.split("\n") if not _MAGIC.fullmatch(line))


def _without_end(code: str) -> str:
    """Return the code without the end of a fence that has no start."""
    return _END.sub("\n", code)


def without_end_tokens(text: str) -> str:
    """Return a text without the tokens at its end, which are in no program."""
    end = len(text)
    for token in reversed(list(_END_TOKEN.finditer(text))):
        if text[token.end() : end].strip():
            break
        end = token.start()
    return text[:end]


def _without_start_tokens(code: str) -> str:
    """Return the code without tokens before it, such as `<|python_tag|>`."""
    start = _START_TOKENS.match(code)
    return code[start.end() :] if start else code


def _without_invisible(code: str) -> str:
    """Return the code without characters that are not seen, and with separators of lines as line breaks."""
    return _INVISIBLE.sub("", code).replace("\u2028", "\n").replace("\u2029", "\n")


def _without_edit(code: str) -> str:
    """Return the code of an edit that replaces nothing."""
    edit = _REPLACED.fullmatch(code)
    return edit["code"] if edit else code


def _with_blanks(code: str) -> str:
    return code.replace("\xa0", " ")


def _without_prose(code: str) -> str:
    """Return the code without the sentences before it, and the text after the first sentence after it."""
    lines = code.split("\n")
    while lines and (not lines[0].strip() or is_prose(lines[0])):
        del lines[0]
    return "\n".join([*before_prose(lines), ""]) if lines else code


_STEPS: tuple[Callable[[str], str], ...] = (
    _without_prompts,
    _without_edit,
    _without_invisible,
    _without_start_tokens,
    without_end_tokens,
    _without_end,
    _without_magics,
    unescaped,
    _with_blanks,
    _without_prose,
)
