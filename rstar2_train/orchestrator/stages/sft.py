"""The SFT stage: a cold start on demonstrations, loss on assistant tokens (paper §4.1). Needs only the trainer."""

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
from rstar2_train.orchestrator.sessions import load_chat_format
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.trainer import lr_schedule
from rstar2_train.trainer.types import OptimizerConfig, TokenizedExample

log = logging.getLogger(__name__)


class DemonstrationBatches:
    """The stage's data as tokens, and which of them each step learns from."""

    def __init__(self, rows: list[Conversation], *, protocol: ChatFormat, settings: SFTStage, seed: int) -> None:
        """Tokenises everything once. Raises DataError for a row that the chat template cannot carry."""
        sequences, levels, dropped = [], [], 0
        for index, row in enumerate(rows):
            try:
                encoded = protocol.conversation(row.messages)
            except ChatFormatError as error:
                raise DataError(f"{settings.data}: row {index + 1}: {error}") from error
            if len(encoded.token_ids) > settings.max_tokens:
                dropped += 1
                continue
            sequences.append(TokenizedExample(encoded.token_ids, encoded.mask))
            levels.append(row.level)
        if dropped:
            log.warning("%d of %d demonstrations are longer than maxTokens and left out", dropped, len(rows))
        if not sequences:
            raise DataError(f"{settings.data}: every demonstration is longer than maxTokens ({settings.max_tokens})")
        self._sequences = sequences
        self._first = [index for index, level in enumerate(levels) if level == 1]
        self._settings = settings
        self._order = PromptSampler(len(sequences), settings.batch_size, seed, "sft")
        self._first_order = PromptSampler(max(1, len(self._first)), settings.batch_size, seed, "sft-first")

    @property
    def steps(self) -> int:
        """Optimiser steps of the stage."""
        return max(1, math.ceil(self._settings.epochs * len(self._sequences) / self._settings.batch_size))

    def batch(self, step: int) -> list[TokenizedExample]:
        """What 0-based `step` learns from."""
        if step < self._settings.shortest_first_steps and self._first:
            return [self._sequences[self._first[index]] for index in self._first_order.at(step)]
        return [self._sequences[index] for index in self._order.at(step)]


async def run(ctx: StageContext) -> Outcome:
    """Run the stage to its end. Raises Suspend or StageFailed."""
    settings = ctx.stage.sft
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, betas=(0.9, 0.95))
    async with TrainerSession(ctx, optimizer, source) as training:
        data = await asyncio.to_thread(_demonstrations, ctx, settings, source.model)
        every = settings.checkpoint_every_steps or max(1, data.steps // 10)
        step = await training.begun()
        ctx.report(phase="Training", total_steps=data.steps)
        while step < data.steps:
            ctx.check_stop()
            started = time.monotonic()
            rate = _rate(settings, step, data.steps)
            metrics = await asyncio.to_thread(training.group.sft_step, data.batch(step), lr=rate)
            step += 1
            seconds = time.monotonic() - started
            tracked = {f"sft/{name}": value for name, value in metrics.items()} | {"sft/lr": rate}
            training.finished_step(step, tracked, seconds=seconds, show={"loss": metrics["loss"]})
            if step % every == 0 and step < data.steps:
                await training.checkpoint(step)
        return await training.hand_on(step)


def _demonstrations(ctx: StageContext, settings: SFTStage, model: Path) -> DemonstrationBatches:
    """The stage's data. Raises StageFailed when it cannot be learned from."""
    try:
        rows = list(read_conversations(Path(settings.data)))
        return DemonstrationBatches(rows, protocol=load_chat_format(ctx, model), settings=settings, seed=ctx.seed)
    except DataError as error:
        raise StageFailed("BadData", str(error), retryable=False) from error


def _rate(settings: SFTStage, step: int, total: int) -> float:
    warmup = math.ceil(settings.warmup_ratio * total)
    if settings.schedule == "constant":
        return lr_schedule.warmup(step, peak=settings.learning_rate, warmup_steps=warmup)
    return lr_schedule.cosine(
        step,
        peak=settings.learning_rate,
        total_steps=total,
        warmup_steps=warmup,
        min_ratio=settings.min_learning_rate_ratio,
    )
