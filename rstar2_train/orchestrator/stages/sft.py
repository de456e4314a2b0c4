"""The SFT stage: a cold start on demonstrations, with loss on assistant tokens (paper §4.1). Needs only the trainer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from pathlib import Path

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import SFTStage
from rstar2_train.data.problems import Conversation, DataError, read_conversations
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.trainer import lr_schedule
from rstar2_train.trainer.types import OptimizerConfig, TokenizedExample

log = logging.getLogger(__name__)


class DemonstrationBatches:
    """The stage's tokenised demonstrations, and the batch of each step."""

    def __init__(self, rows: list[Conversation], *, chat_format: ChatFormat, settings: SFTStage, seed: int) -> None:
        """Tokenise all demonstrations. Raises DataError for a row that the chat template cannot render."""
        examples, levels, dropped = [], [], 0
        for index, row in enumerate(rows):
            try:
                encoded = chat_format.encode_conversation(row.messages)
            except ChatFormatError as error:
                raise DataError(f"{settings.data}: row {index + 1}: {error}") from error
            if len(encoded.token_ids) > settings.max_tokens:
                dropped += 1
                continue
            examples.append(TokenizedExample(encoded.token_ids, encoded.mask))
            levels.append(row.level)
        if dropped:
            log.warning("skipped %d of %d demonstrations: longer than maxTokens", dropped, len(rows))
        if not examples:
            raise DataError(f"{settings.data}: every demonstration is longer than maxTokens ({settings.max_tokens})")
        self._examples = examples
        self._shortest = [index for index, level in enumerate(levels) if level == 1]
        self._settings = settings
        self._order = PromptSampler(len(examples), settings.batch_size, seed, "sft")
        self._shortest_order = PromptSampler(max(1, len(self._shortest)), settings.batch_size, seed, "sft-first")

    @property
    def steps(self) -> int:
        """Number of optimiser steps of the stage."""
        return max(1, math.ceil(self._settings.epochs * len(self._examples) / self._settings.batch_size))

    def batch(self, step: int) -> list[TokenizedExample]:
        """Return the batch of 0-based `step`."""
        if step < self._settings.shortest_first_steps and self._shortest:
            return [self._examples[self._shortest[index]] for index in self._shortest_order.at(step)]
        return [self._examples[index] for index in self._order.at(step)]


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.stage.sft
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    async with sessions.trainer(ctx, optimizer, source) as trainer:
        data = await asyncio.to_thread(_load_demonstrations, ctx, sessions, settings, source.model)
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
            trainer.report_step(step, tracked, seconds=seconds, headline={"loss": metrics["loss"]})
            if step % every == 0 and step < data.steps:
                await trainer.start_checkpoint(step)
        return await trainer.finish(step)


def _load_demonstrations(
    ctx: StageContext, sessions: Sessions, settings: SFTStage, model: Path
) -> DemonstrationBatches:
    """Return the stage's data. Raises StageFailed when it cannot be read or tokenised."""
    try:
        rows = list(read_conversations(Path(settings.data)))
        chat_format = sessions.chat_format(ctx, model)
        return DemonstrationBatches(rows, chat_format=chat_format, settings=settings, seed=ctx.seed)
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
