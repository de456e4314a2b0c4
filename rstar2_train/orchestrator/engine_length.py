"""Waits for engines that take the sequences of the job: those of before an edit of a length are replaced.

A shorter engine would reject a rollout, or let a measurement count a prompt as too long.
"""

from __future__ import annotations

import asyncio
import logging
import time

from rstar2_train.api.contracts import ENGINE_START_SECONDS, StageFailed
from rstar2_train.api.engine_args import given_args
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.fit import longest_sequence
from rstar2_train.capacity.model_shape import local_shape
from rstar2_train.rollout.context import Engines

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0


async def wait_for_lengths(job: AgenticRLJob, engines: Engines, *, seconds: float = ENGINE_START_SECONDS) -> None:
    """Return when no engine is shorter than one that starts now. Raises StageFailed, as retryable, after `seconds`."""
    needed, deadline, is_logged = _needed_tokens(job), time.monotonic() + seconds, False
    while (length := engines.max_model_len) is not None and length < needed:
        message = (
            f"an engine takes {length:,} tokens, a sequence of the job may have {needed:,}: it started before the job "
            "was changed. It is replaced; if it stays, delete its pod"
        )
        if time.monotonic() > deadline:
            raise StageFailed("EngineUnavailable", message, retryable=True)
        if not is_logged:
            log.warning("%s", message)
            is_logged = True
        await asyncio.sleep(POLL_SECONDS)


def _needed_tokens(job: AgenticRLJob) -> int:
    """Return the max-model-len of an engine that starts now, as of `inference.server`; 0: it is not known."""
    given = given_args(job.spec.rollout)
    if "max-model-len" in given:
        return given["max-model-len"] if type(given["max-model-len"]) is int else 0
    shape = local_shape(job.spec.model.source)
    longest = longest_sequence(job)
    return 0 if shape is None else min(longest, shape.max_positions or longest)
