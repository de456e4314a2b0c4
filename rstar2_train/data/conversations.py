"""Turns a demonstration into token ids and a mask that says which of them to learn.

The text is tokenised in the same pieces as a rollout meets them: the prompt up to where the assistant starts to
write, what it wrote, the tool's turn, and so on. So what is learnt here is what is sampled later, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rstar2_train.data.problems import DataError


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed."""

    eos_token: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render messages to text."""

    def encode(self, text: Any, **options: Any) -> Any:
        """Token ids of a text."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenised conversation; both lists have the same length."""

    ids: list[int]
    mask: list[int]
    """1 where the assistant wrote the token (its end-of-turn token too), else 0."""


def tokenize(messages: Sequence[dict[str, Any]], *, tokenizer: ChatTokenizer, tools: Sequence[Any] = ()) -> Tokens:
    """Token ids of a conversation and the mask of what the assistant wrote.

    `tools` are the signatures shown by the chat template. Everything after the last assistant turn's end token is
    left out, as nothing there is learnt. Raises DataError when the chat template rewrites earlier turns as later ones
    arrive, for then no training text equals what the model would meet while it writes.
    """
    end = str(tokenizer.eos_token)
    ids: list[int] = []
    mask: list[int] = []
    done = ""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render(messages[:index], tokenizer=tokenizer, tools=tools, prompt=True)
        after = _render(messages[: index + 1], tokenizer=tokenizer, tools=tools, prompt=False)
        if not before.startswith(done) or not after.startswith(before):
            raise DataError(
                f"messages[{index}]: the chat template changes earlier text when this turn is added; "
                "use a template whose turns only ever append"
            )
        written = after[len(before) :]
        stop = written.rfind(end)
        if stop < 0:
            raise DataError(f"messages[{index}]: the chat template does not end an assistant turn with {end!r}")
        written = written[: stop + len(end)]
        for text, author in ((before[len(done) :], 0), (written, 1)):
            piece = list(tokenizer.encode(text, add_special_tokens=False))
            ids += piece
            mask += [author] * len(piece)
        done = before + written
    return Tokens(ids=ids, mask=mask)


def _render(
    messages: Sequence[dict[str, Any]], *, tokenizer: ChatTokenizer, tools: Sequence[Any], prompt: bool
) -> str:
    return str(
        tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
        )
    )
