"""How a stage attempt creates its collaborators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.orchestrator.sessions import stage_chat_format
from rstar2_train.tools.toolset import builtin_toolset
from tests.support.stage_attempt import NewAttempt


def test_stage_chat_format_without_tokenizer_fails_the_stage(new_attempt: NewAttempt, tmp_path: Path) -> None:
    """A model folder without a tokenizer is a configuration error: another attempt would fail as well."""
    with pytest.raises(StageFailed, match="the tokenizer cannot be used") as caught:
        stage_chat_format(new_attempt(), tmp_path)
    assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)


@pytest.mark.parametrize(
    ("spec", "in_paper_form"),
    [
        ({}, True),
        ({"tools": [{"name": "f", "source": "/none/f.py"}]}, False),
        ({"environments": [{"name": "e", "url": "http://games:8000"}]}, False),
    ],
    ids=["built-in", "tools", "environment"],
)
def test_stage_without_engines_has_the_form_of_the_tools(
    new_attempt: NewAttempt, tmp_path: Path, spec: dict[str, Any], in_paper_form: bool
) -> None:
    """Its rows describe tools as the rollouts of the job do. It needs neither files of tools nor servers."""
    write_policy(tmp_path / "model", texts=["some text"] * 50, seed=0)
    chat_format = stage_chat_format(new_attempt("s", **spec), tmp_path / "model")
    (tool,) = builtin_toolset().tools
    assert (chat_format.tools.section([tool.signature]) == builtin_toolset().section()) is in_paper_form
