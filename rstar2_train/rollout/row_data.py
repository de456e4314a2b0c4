"""The further data of a row, which checkers, programs and environments read.

It may have megabytes: a thread parses it in short steps, so that the other rollouts of the event loop continue.
"""

from __future__ import annotations

import json
from typing import Any

from rstar2_train.data.problems import INLINE_DATA, Problem
from rstar2_train.utils.json_steps import MAX_ITEMS, read_json, run_in_json_thread


async def read_data(problem: Problem) -> Any:
    """Return the further data of a row; None: it has none. `read_problems` has refused data above the limits."""
    if len(problem.data) <= INLINE_DATA:
        return json.loads(problem.data) if problem.data else None
    return await run_in_json_thread(lambda: read_json(problem.data.encode(), max_fields=MAX_ITEMS))
