"""The context of a stage attempt with nothing but its folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.stage_attempt import NewAttempt, create_attempt


@pytest.fixture
def new_attempt(tmp_path: Path) -> NewAttempt:
    """Return a function that creates the context of an attempt."""
    return partial(create_attempt, tmp_path)
