"""The collaborators of a stage attempt, and how each one is created.

The stages receive them as a parameter, so that a test can pass its own.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError


def load_chat_format(ctx: StageContext, model: Path) -> ChatFormat:
    """Return the job's chat format on the tokenizer in `model`. Raises StageFailed when it cannot be used."""
    try:
        return ChatFormat.load(model, ctx.job.spec.model, tool=ctx.job.spec.rollout.tool)
    except ChatFormatError as error:
        raise StageFailed("BadConfiguration", str(error), retryable=False) from error
