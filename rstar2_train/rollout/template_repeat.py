"""Whether a chat template writes the same text for the same messages each time: in each process, and on each day.

Otherwise prompts of a rollout, of its demonstrations and of a resumed job would differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rstar2_train.rollout.template_file import ChatFormatError

_ADDRESS = re.compile(r"<([^\n]{1,200}?) at 0x[0-9a-f]+>")
"""How Python writes an object without a text of its own: with its place in memory."""
_RANDOM_FILTER, _RANDOM_FUNCTION = "random", "lipsum"
"""The filter and the function of Jinja that draw from a random generator."""


def check_random(template: str) -> None:
    """Raise ChatFormatError for a template with a function or a filter of Jinja that draws at random."""
    from jinja2 import Environment, TemplateSyntaxError

    try:
        tokens = [value for _, kind, value in Environment().lex(template) if kind not in ("data", "whitespace")]
    except TemplateSyntaxError:
        return  # the rendering names it
    for before, token in zip(["", *tokens], tokens, strict=False):
        name = token.strip("'\"")
        if name == _RANDOM_FUNCTION or (name == _RANDOM_FILTER and before in ("|", "(")):
            raise ChatFormatError(f"the chat template calls {name}, so a prompt has another text each time: remove it")


def check_addresses(text: str, messages: Iterable[Mapping[str, Any]]) -> None:
    """Raise ChatFormatError for a rendering with the address of an object, which is another one in each process."""
    objects = _ADDRESS.findall(text)
    given = "\n".join(str(value) for message in messages for value in message.values()) if objects else ""
    if own := next((name for name in objects if f"<{name} at 0x" not in given), ""):
        raise ChatFormatError(
            f"the chat template writes the object '<{own}>', such as a method without parentheses, so a prompt has "
            "another text in each process: correct the template"
        )
