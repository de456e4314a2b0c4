"""The calls that a model writes in a turn, and the tokens of their responses."""

from __future__ import annotations

from collections.abc import Sequence

from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.tools.schema import TOOL_NAME, call_text


def render_call(code: str, stdin: str = "") -> str:
    """Return a call of the Python tool as a model writes it."""
    return call_text(TOOL_NAME, {"code": code, "input": stdin})


def tool_turn_ids(chat_format: ChatFormat, responses: Sequence[str]) -> list[int]:
    """Return the token ids of the tool responses to a turn: they follow its sampled ids, up to the next turn."""
    return chat_format.encode_reply(chat_format.tool_turn_text(responses))
