r"""A conversation's text as clients see it: what the model wrote, with its tags, and what its calls printed, in order.

Between the loop (completion.py), which writes it, the requests (request.py), which bring it back with the next
question, and the terminal (chat.py), which takes it apart as it comes. Outputs stand in the content of the one
assistant message as the model is shown them, each `<tool_response>` block on lines of its own. Pure.
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
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    code: 0xFFFD for code in range(0x7F, 0xA0)
}
_LONGEST_TAG = len("</tool_response>")


def outputs_text(responses: Sequence[str]) -> str:
    """What stands in the content between a turn with calls and the next: their outputs, harmless already."""
    return f"\n{tool_message(responses)}\n"


def split_turns(content: str) -> list[dict[str, str]]:
    """The content of an assistant message as the messages it was made of: turns, and the outputs between them."""
    messages: list[dict[str, str]] = []
    at = 0
    while (start := content.find(_OPEN, at)) >= 0:
        outputs, end = _outputs(content, start)
        if not outputs:
            break  # nothing closes behind here: looking on would take the square of the time
        messages.append({"role": "assistant", "content": content[at:start]})
        messages += ({"role": "tool", "content": output} for output in outputs)
        at = end + 1
    return [*messages, {"role": "assistant", "content": content[at:]}]


def _outputs(content: str, at: int) -> tuple[list[str], int]:
    """What the blocks from `at` on hold, one behind the other, and where the line break behind them is."""
    outputs = []
    while content.startswith(_OPEN, at):
        close = content.find(_CLOSE, at + len(_OPEN))
        if close < 0:
            break
        outputs.append(content[at + len(_OPEN) : close])
        at = close + len(_CLOSE) - 1  # this line break may begin the next block
    return outputs, at


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of the text, of one kind; several may follow one another."""

    kind: Kind
    text: str
    closes: bool = False
    """Another kind follows, or nothing."""


class StreamSplitter:
    """Takes the text apart as it comes. Tags are left out; one that is cut in two is waited for."""

    def __init__(self) -> None:
        self._open: list[Kind] = ["text"]
        self._waiting = ""

    def feed(self, text: str) -> Iterator[TextPiece]:
        """The pieces that are certain by now."""
        self._waiting += text
        while found := _TAG.search(self._waiting):
            before, kind = self._waiting[: found.start()], _TAGS[found[2]]
            self._waiting = self._waiting[found.end() :]
            now = self._open[-1]
            if found[1] and kind == now:
                yield TextPiece(now, before, closes=True)
                self._open.pop()
            elif not found[1] and kind != now and now not in ("call", "output"):
                yield TextPiece(now, before, closes=True)
                self._open.append(kind)
            else:  # a tag that opens or closes nothing here is text
                yield TextPiece(now, before + found[0])
        sure = len(self._waiting) - _unsure(self._waiting)
        if sure:
            yield TextPiece(self._open[-1], self._waiting[:sure])
            self._waiting = self._waiting[sure:]

    def end(self) -> Iterator[TextPiece]:
        """What is left when the text has ended."""
        yield TextPiece(self._open[-1], self._waiting, closes=True)
        self._open, self._waiting = ["text"], ""


def printable(text: str) -> str:
    """The text with its control characters made visible: a program's output must not steer the terminal."""
    return text.translate(_CONTROLS)


def _unsure(text: str) -> int:
    """Characters at the end that may be the beginning of a tag."""
    at = text.rfind("<", max(0, len(text) - _LONGEST_TAG))
    if at < 0:
        return 0
    end = text[at:]
    return len(end) if any(tag.startswith(end) for name in _TAGS for tag in (f"<{name}>", f"</{name}>")) else 0
