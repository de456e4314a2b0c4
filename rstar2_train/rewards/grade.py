"""Grades a response by what its problem has: a known answer (verify.py), or instructions (instructions.py).

The one place that tells the two apart; whoever collects responses calls `grade` for both.
"""

from __future__ import annotations

import asyncio

from rstar2_train.rewards.instructions import is_gold, of_gold, score
from rstar2_train.rewards.verify import Score, SnippetRunner, verify
from rstar2_train.rewards.visible_text import visible_text


async def grade(written: str, last_turn: str, gold: str, *, judge: SnippetRunner) -> Score:
    """The verdict on a response that has ended by itself.

    `written`: all that the model wrote; `last_turn`: of that, its last turn. `judge` is asked only about known answers
    that need a parser. Raises what `verify` raises.
    """
    if not is_gold(gold):
        return await verify(written, gold, judge=judge)
    return await asyncio.to_thread(score, visible_text(last_turn), of_gold(gold))
