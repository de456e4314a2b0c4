"""Mirrors what a job writes to its storage into the progress ConfigMap, which the operator turns into status.

`due` says when progress is worth a write: at once on a change of stage, attempt or phase, else every ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

from rstar2_train.api.base import ApiModel
from rstar2_train.api.contracts import PROGRESS_KEY, AttemptRecord, Outcome, Progress, outcome_key
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.pod.progress_config_map import ProgressConfigMap, ProgressNotWritten
from rstar2_train.tracking import shipper

log = logging.getLogger("rstar2.cluster")

LOOK_SECONDS = 1.0
EVERY_SECONDS = 10.0
"""Between two writes of a progress whose phase has not changed."""
PATIENCE_SECONDS = 60.0
"""How long the end of a pod waits for an API server that is away; the outcome lies in storage, and in the pod's
termination message."""
TERMINATION_LOG = Path("/dev/termination-log")
"""Where a container leaves its last words; made by the kubelet."""


def due(progress: Progress, told: Progress | None, *, seconds: float) -> bool:
    """Whether to tell a progress, so many seconds after the last time. `told`: what was told then."""
    if told is None:
        return True
    if progress.updated_at == told.updated_at and progress.mlflow_run_id == told.mlflow_run_id:
        return False
    changed = (progress.stage, progress.attempt, progress.phase) != (told.stage, told.attempt, told.phase)
    return changed or seconds >= EVERY_SECONDS


class ProgressMirror:
    """Tells one attempt's progress and outcome; with no ConfigMap, nobody."""

    def __init__(
        self, config_map: ProgressConfigMap | None, state: JobState, *, stage: str, attempt: AttemptRecord
    ) -> None:
        self._config_map = config_map
        self._state = state
        self._stage = stage
        self._attempt = attempt
        self._told: Progress | None = None
        self._told_at = 0.0
        self._trouble = ""
        self._unreadable = ""

    async def follow(self) -> None:
        """Tell progress as it changes, for ever."""
        while True:
            await self._tell_progress()
            await asyncio.sleep(LOOK_SECONDS)

    async def conclude(self, outcome: Outcome) -> None:
        """Tell the last progress and the outcome; waits a minute for an API server that is away."""
        await retry_until(self._config_map, self._final(outcome))

    async def _tell_progress(self) -> None:
        progress = self._progress()
        if self._config_map is None or progress is None:
            return
        if not due(progress, self._told, seconds=time.monotonic() - self._told_at):
            return
        try:
            await self._config_map.put({PROGRESS_KEY: to_json(progress)})
        except ProgressNotWritten as error:
            if str(error) != self._trouble:
                log.warning("the API server does not take the progress, training goes on: %s", error)
            self._trouble = str(error)
            await asyncio.sleep(LOOK_SECONDS)
            return
        self._told, self._told_at, self._trouble = progress, time.monotonic(), ""

    def _progress(self) -> Progress | None:
        """The attempt's progress, with its run in MLflow; None before its driver wrote one, or once it is past.

        None too when it cannot be read, which is logged once: the mirror, and the outcome, must not fail with it.
        """
        try:
            progress = self._read()
        except (OSError, ValueError) as error:  # network storage has its moments; a file may not be what it should
            if str(error) != self._unreadable:
                log.warning("the progress cannot be read now: %s", error)
            self._unreadable = str(error)
            return None
        self._unreadable = ""
        return progress

    def _read(self) -> Progress | None:
        progress = self._state.progress()
        if progress is None or (progress.stage, progress.attempt) != (self._stage, self._attempt.attempt):
            return None
        if self._state.stage(self._stage).attempt() != self._attempt:
            return None
        return progress.model_copy(update={"mlflow_run_id": shipper.run_id(self._state.root, self._stage)})

    def _final(self, outcome: Outcome) -> dict[str, str]:
        progress = self._progress()
        told = {} if progress is None else {PROGRESS_KEY: to_json(progress)}
        return told | {outcome_key(self._stage): to_json(outcome)}


async def retry_until(
    config_map: ProgressConfigMap | None, data: dict[str, str], *, seconds: float = PATIENCE_SECONDS
) -> None:
    """Put keys, again and again for a while. What could not be told is logged."""
    deadline = time.monotonic() + seconds
    while config_map is not None:
        try:
            await config_map.put(data)
            return
        except ProgressNotWritten as error:
            if time.monotonic() > deadline:
                log.error("the API server did not take %s for %.0f s: %s", ", ".join(data), seconds, error)
                return
        await asyncio.sleep(LOOK_SECONDS)


def to_json(model: ApiModel) -> str:
    """A contract as one line of JSON."""
    return json.dumps(model.model_dump(mode="json", exclude_none=True))


def write_termination_message(text: str, file: Path = TERMINATION_LOG) -> None:
    """Leave a container's termination message, where there is a kubelet to read it. At most 4 KB are kept."""
    if file.exists():
        file.write_text(text[:4096], encoding="utf-8")
