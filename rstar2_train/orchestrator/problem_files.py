"""The problems of a stage's data files."""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.data.problems import DataError, Problem, read_problems


def load_problems(file: str) -> list[Problem]:
    """Return the problems of a data file. Raises StageFailed when the file cannot be read."""
    try:
        return list(read_problems(Path(file)))
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error
