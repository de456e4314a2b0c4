"""The collaborators of a stage attempt, and how each one is created.

The stages receive `Sessions` as a parameter, so that a test can pass its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.state_dir import JobState
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.pipeline.remote_teacher import RemoteTeacher
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.teacher_check import TeacherServers
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import job_toolset, offline_toolset
from rstar2_train.utils.files import write_atomically


def stage_chat_format(ctx: StageContext, model: Path) -> ChatFormat:
    """Return the job's chat format on the attempt's tokenizer, by default that in `model`. Raises StageFailed."""
    try:
        folder, spec = ctx.tokenizer or model, ctx.job.spec
        tools = job_toolset(spec, ctx.endpoints.environments) if ctx.stage.needs_engines else offline_toolset(spec)
        chat_format = ChatFormat.load(folder, spec.model, tools=tools)
        if chat_format.template.uses_date:
            chat_format = ChatFormat.load(folder, spec.model, tools=tools, date=chat_date(ctx.state))
        return chat_format
    except (ChatFormatError, SourceError) as error:
        raise StageFailed("BadConfiguration", str(error), retryable=False) from error
    except ServerLost as error:
        raise StageFailed("ServerUnavailable", str(error), retryable=True) from error


def chat_date(state: JobState) -> date:
    """Return the date in the prompts of a job: that of its first attempt, on any later day."""
    if not state.chat_date_file.exists():
        write_atomically(state.chat_date_file, f"{datetime.now(UTC):%Y-%m-%d}\n")
    return date.fromisoformat(state.chat_date_file.read_text(encoding="utf-8").strip())


@dataclass(frozen=True, slots=True)
class Sessions:
    """Factories of a stage's collaborators."""

    trainer: Callable[..., TrainerSession] = TrainerSession
    """Called with the arguments of TrainerSession."""
    rollouts: Callable[[StageContext, ChatFormat], RolloutSession] = RolloutSession
    chat_format: Callable[[StageContext, Path], ChatFormat] = stage_chat_format
    teacher: Callable[[TeacherServers], RemoteTeacher] = RemoteTeacher


SESSIONS = Sessions()
"""The sessions of a real attempt."""
