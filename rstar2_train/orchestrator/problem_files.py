"""The problems of a stage's data files."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.collector import tokenise_prompts


def load_problems(file: str) -> list[Problem]:
    """Return the problems of a data file. Raises StageFailed when the file cannot be read."""
    try:
        return list(read_problems(Path(file)))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error


async def stage_prompts(problems: Sequence[Problem], chat_format: ChatFormat) -> dict[str, array[int]]:
    """Return the tokens of each prompt by problem id. Raises StageFailed for one that the template does not write."""
    try:
        return await tokenise_prompts(problems, chat_format)
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
