"""What the reader of a response sees of it: the last turn, without its reasoning; of an answer block, what is inside.

IFEval's instructions are about that text. Used by grade.py. The verifier of known answers does not use it: it looks for
a box in all that the model wrote (extract.py). Pure; one pass over the text.
"""

from __future__ import annotations

import re

from rstar2_train.rewards.extract import last_answer

_REASONING = re.compile(r"<(/?)(?:reason|think)>")


def visible_text(last_turn: str) -> str:
    """The text of a finished response, stripped, from its last turn: tool calls and outputs stand in earlier ones.

    Reasoning is what stands between `<reason>` or `<think>` and its end, or before a first such end: chat templates
    open it in the prompt. One that never ends hides the rest.
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
