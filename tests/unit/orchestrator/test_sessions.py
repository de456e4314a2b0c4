"""How a stage attempt creates its collaborators."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.orchestrator.sessions import load_chat_format
from tests.support.stage_attempt import NewAttempt


def test_load_chat_format_without_tokenizer_fails_the_stage(new_attempt: NewAttempt, tmp_path: Path) -> None:
    """A model folder without a tokenizer is a configuration error: another attempt would fail as well."""
    with pytest.raises(StageFailed, match="the tokenizer cannot be used") as caught:
        load_chat_format(new_attempt(), tmp_path)
    assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)
