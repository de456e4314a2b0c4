"""Grades a response: by a known answer (verify.py), or by the form that a benchmark brings (answer_forms.py).

The only module that distinguishes the two; the scoring of trajectories calls `grade` for both.
"""

from __future__ import annotations

import asyncio

from rstar2_train.rewards.answer_forms import form_of
from rstar2_train.rewards.verdict import Grade
from rstar2_train.rewards.verify import SnippetRunner, verify


async def grade(model_text: str, last_turn: str, gold: str, *, judge: SnippetRunner) -> Grade:
    """Return the grade of a complete response.

    `model_text`: the text of all turns; `last_turn`: the text of the last turn. The judge is called only for known
    answers that need a parser. Raises as `verify` does.
    """
    form = form_of(gold)
    if form is None:
        return await verify(model_text, gold, judge=judge)
    return await asyncio.to_thread(form.grade, last_turn, gold)
