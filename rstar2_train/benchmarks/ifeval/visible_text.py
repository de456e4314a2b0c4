"""The text of a response that its reader sees: the last turn without reasoning; of an answer block, its content.

IFEval's instructions apply to that text. Used by grade.py. The verifier of known answers searches all text of the model
for a box instead (extract.py). Pure; one pass over the text.
"""

from __future__ import annotations

import re

from rstar2_train.rewards.extract import last_answer

_REASONING = re.compile(r"<(/?)(?:reason|think)>")


def visible_text(last_turn: str) -> str:
    """Return the stripped visible text of a response's last turn; tool calls and outputs are in earlier turns.

    Reasoning is the text between `<reason>` or `<think>` and its closing tag, or before a first closing tag: chat
    templates open it in the prompt. Reasoning without a closing tag hides the rest.
    """
    kept, at, hidden = [], 0, False
    for number, tag in enumerate(_REASONING.finditer(last_turn)):
        closing = bool(tag[1])
        if not hidden and not (closing and number == 0):
            kept.append(last_turn[at : tag.start()])
        hidden, at = not closing, tag.end()
    if not hidden:
        kept.append(last_turn[at:])
    text = "".join(kept)
    answer = last_answer(text)
    return (text if answer is None else answer).strip()
