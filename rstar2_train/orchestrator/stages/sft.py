"""The SFT stage: a cold start on demonstrations, with loss on assistant tokens (paper §4.1). Needs only the trainer."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import SFTStage
from rstar2_train.data.demonstrations import NO_FIRST_LEVEL, all_held_out
from rstar2_train.data.problems import DataError
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.token_cache import TokenCache, load_tokens
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.trainer import lr_schedule
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence

log = logging.getLogger(__name__)


MOST_HELD_OUT, HELD_OUT_SHARE, LEAST_ROWS = 512, 0.01, 20_000
"""Default of heldOutRows: HELD_OUT_SHARE of the data, at most MOST_HELD_OUT; none below LEAST_ROWS rows."""


class DemonstrationBatches:
    """The stage's tokenised demonstrations, the batch of each step, and those that are held out."""

    def __init__(self, tokens: TokenCache, *, settings: SFTStage, seed: int) -> None:
        """Choose the demonstrations to train on. Raises DataError if there is none."""
        usable = np.flatnonzero(tokens.lengths <= settings.max_tokens)
        if len(usable) < len(tokens.ends):
            dropped = len(tokens.ends) - len(usable)
            log.warning("skipped %d of %d demonstrations: longer than maxTokens", dropped, len(tokens.ends))
        if not len(usable):
            raise DataError(f"{settings.data}: every demonstration is longer than maxTokens ({settings.max_tokens})")
        held_out = set(
            random.Random(f"{seed}/sft-held-out").sample(range(len(usable)), _held_out(settings, len(usable)))
        )
        self._tokens = tokens
        self._rows = [int(row) for at, row in enumerate(usable) if at not in held_out]
        self._held_out = [int(usable[at]) for at in sorted(held_out)]
        self._shortest = [row for row in self._rows if tokens.levels[row] == 1]
        if settings.shortest_first_steps and not self._shortest:
            raise DataError(f"{settings.data}: {NO_FIRST_LEVEL}")
        self._settings = settings
        self._order = PromptSampler(len(self._rows), settings.batch_size, seed, "sft")
        self._shortest_order = PromptSampler(max(1, len(self._shortest)), settings.batch_size, seed, "sft-first")

    @property
    def steps(self) -> int:
        """Number of optimiser steps of the stage."""
        return max(1, math.ceil(self._settings.epochs * len(self._rows) / self._settings.batch_size))

    @property
    def held_out(self) -> list[TokenSequence]:
        """The demonstrations that are not trained on."""
        return [self._tokens.example(row) for row in self._held_out]

    def batch(self, step: int) -> list[TokenSequence]:
        """Return the batch of 0-based `step`."""
        rows, order = self._rows, self._order
        if step < self._settings.shortest_first_steps:
            rows, order = self._shortest, self._shortest_order
        return [self._tokens.example(rows[index]) for index in order.at(step)]


def _held_out(settings: SFTStage, rows: int) -> int:
    """Return the number of demonstrations to hold out of `rows`. Raises DataError if none is left to train on."""
    if settings.held_out_rows is not None:
        if settings.held_out_rows >= rows:
            raise DataError(f"{settings.data}: {all_held_out(settings.held_out_rows, rows)}")
        return settings.held_out_rows
    return min(MOST_HELD_OUT, int(HELD_OUT_SHARE * rows)) if rows >= LEAST_ROWS else 0


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.stage.sft
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    async with sessions.trainer(ctx, optimizer, source) as trainer:
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            ctx.check_stop()
            loop.call_soon_threadsafe(ctx.report_demonstrations, done, total)

        chat_format = await asyncio.to_thread(sessions.chat_format, ctx, source.model)
        data = await asyncio.to_thread(_load_demonstrations, ctx, settings, chat_format, report)
        every = settings.checkpoint_every_steps or max(1, data.steps // 10)
        step = await trainer.wait_until_ready()
        ctx.report(phase="Training", total_steps=data.steps)
        while step < data.steps:
            ctx.check_stop()
            started = time.monotonic()
            rate = _learning_rate(settings, step, data.steps)
            metrics = await asyncio.to_thread(trainer.group.sft_step, data.batch(step), lr=rate)
            step += 1
            seconds = time.monotonic() - started
            tracked = {f"sft/{name}": value for name, value in metrics.items()} | {"sft/lr": rate}
            if data.held_out and (step % every == 0 or step == data.steps):
                tracked["sft/held_out_loss"] = await asyncio.to_thread(trainer.group.sft_loss, data.held_out)
            trainer.report_step(step, tracked, seconds=seconds, headline={"loss": metrics["loss"]})
            if step % every == 0 and step < data.steps:
                await trainer.start_checkpoint(step)
        return await trainer.finish(step, stop_ids=chat_format.stop_ids)


def _load_demonstrations(
    ctx: StageContext, settings: SFTStage, chat_format: ChatFormat, report: Callable[[int, int], None]
) -> DemonstrationBatches:
    """Return the stage's data. Raises StageFailed when it cannot be read or tokenised."""
    try:
        tokens = load_tokens(ctx.folder.tokens, Path(settings.data), chat_format, report=report)
        return DemonstrationBatches(tokens, settings=settings, seed=ctx.seed)
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error


def _learning_rate(settings: SFTStage, step: int, total: int) -> float:
    warmup = math.ceil(settings.warmup_ratio * total)
    if settings.schedule == "Constant":
        return lr_schedule.warmup(step, peak=settings.learning_rate, warmup_steps=warmup)
    return lr_schedule.cosine(
        step,
        peak=settings.learning_rate,
        total_steps=total,
        warmup_steps=warmup,
        min_ratio=settings.min_learning_rate_ratio,
    )
