"""A teacher on servers, of an endpoint or of spec.teacher: they rate the tokens of a batch before it is trained on.

A server may be slow, busy (429) or restart. A request is repeated until the servers have given no usable answer for
some minutes; then the stage fails as retryable, and its stored rollouts are rated again. The next attempt checks the
servers first. A request that the server of an endpoint finds wrong fails the stage: no repetition can help. An engine
of spec.teacher may have started with other lengths, before or after an edit: its request is repeated too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.teacher_client import TeacherClient
from rstar2_train.rollout.teacher_check import (
    TeacherRejected,
    TeacherServers,
    TeacherTooShort,
    check_length,
    check_teacher,
)
from rstar2_train.rollout.tokenizer_files import embedded_tokens
from rstar2_train.trainer.types import TokenSequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

IN_FLIGHT = 32
"""Requests at the same time."""
PATIENCE_SECONDS = 300.0
"""Time without any usable answer after which the server counts as unavailable."""
WRONG_REQUEST = (400, 413, 422)
"""Statuses of a request that is wrong or too long. Others, such as 404 of an ingress, may be those of a restart."""
START_POLL_SECONDS = 2.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a request is repeated: doubled each time; a Retry-After header raises them, to a minute at most."""
MOST_RETRY_AFTER = 60.0


class RemoteTeacher:
    """The servers of one stage attempt. Use as `async with`."""

    def __init__(
        self, servers: TeacherServers, *, patience: float = PATIENCE_SECONDS, first_delay: float = FIRST_DELAY
    ) -> None:
        self._servers = servers
        self._patience = patience
        self._first_delay = first_delay
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._answered = 0.0
        """Clock of the last answer."""

    async def __aenter__(self) -> Self:
        self._session = EngineSession()
        self._clients = self._servers.connect(self._session)
        self._next = cycle(self._clients)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def check(self, tokenizer: PreTrainedTokenizerBase, model: Path, *, longest: int) -> None:
        """Wait until the servers have started. Raise StageFailed if one cannot rate the tokens of the model."""
        deadline, vocabulary = time.monotonic() + self._servers.start_seconds, embedded_tokens(model) or 0
        for client in self._clients:
            await self._until_started(client, deadline)
            try:
                while await self._is_replaced(client, longest, deadline):
                    log.warning("%s started before the job was changed; waiting until it is replaced", client.url)
                    await asyncio.sleep(START_POLL_SECONDS)
                await check_teacher(client, tokenizer, vocabulary=vocabulary, longest=longest)
            except TeacherRejected as error:
                raise StageFailed("BadConfiguration", f"the teacher: {error}", retryable=False) from error
            except EngineUnavailable as error:
                raise StageFailed("ServerUnavailable", f"the teacher: {error}", retryable=True) from error

    async def _is_replaced(self, client: TeacherClient, longest: int, deadline: float) -> bool:
        """Return whether an engine of the job is shorter than its sequences: it started before an edit.

        Raises StageFailed if it stays.
        """
        if not self._servers.own:
            return False
        try:
            await check_length(client, longest=longest)
        except TeacherTooShort as error:
            if time.monotonic() > deadline:
                message = f"the teacher's engine started before the job was changed: delete its pod: {error}"
                raise StageFailed("ServerUnavailable", message, retryable=True) from error
            return True
        return False

    async def _until_started(self, client: TeacherClient, deadline: float) -> None:
        """Return when a server answers, or its time is over: then the check names the reason."""
        while time.monotonic() < deadline:
            try:
                await client.models()
            except EngineUnavailable:
                await asyncio.sleep(START_POLL_SECONDS)
            except EngineRejected:
                return
            else:
                return

    async def rate(self, groups: Sequence[Sequence[TokenSequence]]) -> list[list[TokenSequence]]:
        """Return the sequences with the teacher's log-probability of each token. Raises StageFailed."""
        self._answered = time.monotonic()
        tasks = [[asyncio.create_task(self._rated(sequence)) for sequence in group] for group in groups]
        flat = [task for group in tasks for task in group]
        try:
            await asyncio.gather(*flat)
        finally:
            for task in flat:
                task.cancel()
            await asyncio.gather(*flat, return_exceptions=True)
        return [[task.result() for task in group] for group in tasks]

    async def _rated(self, sequence: TokenSequence) -> TokenSequence:
        if not sequence.mask[1:].any():  # it does not train; a request needs two tokens
            return replace(sequence, reference_logprobs=np.zeros(len(sequence.ids), dtype=np.float32))
        delay = self._first_delay
        while True:
            try:
                async with self._slots:
                    scores = await next(self._next).score(sequence.ids.tolist())
            except (EngineRejected, EngineUnavailable) as error:
                wrong = isinstance(error, EngineRejected) and error.status in WRONG_REQUEST
                if wrong and not self._servers.own:
                    message = f"the teacher rejects a request: {error}"
                    raise StageFailed("BadConfiguration", message, retryable=False) from error
                silent = time.monotonic() - self._answered
                if silent > self._patience:
                    message = f"the teacher has given no usable answer for {silent:.0f} s: {error}"
                    raise StageFailed("ServerUnavailable", message, retryable=True) from error
                log.warning("the teacher gives no usable answer, retrying: %s", error)
                wanted = error.retry_after if isinstance(error, EngineUnavailable) else 0.0
                await asyncio.sleep(max(delay, min(wanted, MOST_RETRY_AFTER)))
                delay = min(2 * delay, LONGEST_DELAY)
            else:
                self._answered = time.monotonic()
                return replace(sequence, reference_logprobs=np.asarray(scores.logprobs, dtype=np.float32))
