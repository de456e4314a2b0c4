r"""The text form of an answer: the model's text with its tags, and the outputs of its calls, in order. Pure.

Written by the loop (completion.py), returned by the client with the next request (request.py), and split in the
terminal while it streams (chat.py). Tool outputs are part of the content of the one assistant message, in the form
that the model reads, with each `<tool_response>` block on lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rstar2_train.rollout.chat_format import tool_message

_OPEN, _CLOSE = "\n<tool_response>\n", "\n</tool_response>\n"

Kind = Literal["text", "reason", "call", "output", "answer"]
_TAGS: dict[str, Kind] = {
    "reason": "reason",
    "think": "reason",
    "tool_call": "call",
    "tool_response": "output",
    "answer": "answer",
}
_TAG = re.compile(rf"<(/?)({'|'.join(_TAGS)})>")
_LONGEST_TAG = len("</tool_response>")


def outputs_text(responses: Sequence[str]) -> str:
    """Return the content between a turn with calls and the next turn. `responses`: outputs without special tokens."""
    return f"\n{tool_message(responses)}\n"


def split_turns(content: str) -> list[dict[str, str]]:
    """Return the content of an assistant message as messages: its turns, and the tool outputs between them."""
    messages: list[dict[str, str]] = []
    at = 0
    while (start := content.find(_OPEN, at)) >= 0:
        outputs, end = _outputs(content, start)
        if not outputs:
            break  # no block is closed after this one; further searches would take quadratic time
        messages.append({"role": "assistant", "content": content[at:start]})
        messages += ({"role": "tool", "content": output} for output in outputs)
        at = end + 1
    return [*messages, {"role": "assistant", "content": content[at:]}]


def _outputs(content: str, at: int) -> tuple[list[str], int]:
    """Return the contents of the consecutive blocks from `at` on, and the index of the line break after them."""
    outputs = []
    while content.startswith(_OPEN, at):
        close = content.find(_CLOSE, at + len(_OPEN))
        if close < 0:
            break
        outputs.append(content[at + len(_OPEN) : close])
        at = close + len(_CLOSE) - 1  # this line break may start the next block
    return outputs, at


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text of one kind. Consecutive pieces may have the same kind."""

    kind: Kind
    text: str
    closes: bool = False
    """Whether this is the last piece before another kind or the end."""


class StreamSplitter:
    """Splits streamed text at its tags, which it removes. An incomplete tag is buffered until the rest arrives."""

    def __init__(self) -> None:
        self._open: list[Kind] = ["text"]
        self._buffer = ""

    def feed(self, text: str) -> Iterator[TextPiece]:
        """Yield the pieces that are complete now."""
        self._buffer += text
        while tag := _TAG.search(self._buffer):
            before, kind = self._buffer[: tag.start()], _TAGS[tag[2]]
            self._buffer = self._buffer[tag.end() :]
            current = self._open[-1]
            if tag[1] and kind == current:
                yield TextPiece(current, before, closes=True)
                self._open.pop()
            elif not tag[1] and kind != current and current not in ("call", "output"):
                yield TextPiece(current, before, closes=True)
                self._open.append(kind)
            else:  # a tag that opens or closes no block here is text
                yield TextPiece(current, before + tag[0])
        complete = len(self._buffer) - _partial_tag_length(self._buffer)
        if complete:
            yield TextPiece(self._open[-1], self._buffer[:complete])
            self._buffer = self._buffer[complete:]

    def end(self) -> Iterator[TextPiece]:
        """Yield the rest at the end of the text."""
        yield TextPiece(self._open[-1], self._buffer, closes=True)
        self._open, self._buffer = ["text"], ""


def _partial_tag_length(text: str) -> int:
    """Return the number of characters at the end that may be the start of a tag."""
    at = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    if at < 0:
        return 0
    partial = text[at:]
    return len(partial) if any(tag.startswith(partial) for name in _TAGS for tag in (f"<{name}>", f"</{name}>")) else 0
