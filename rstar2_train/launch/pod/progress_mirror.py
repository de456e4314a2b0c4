"""Copies progress and outcome from the job's storage to the progress ConfigMap, from which the operator sets status.

`due` decides when progress is worth a write: immediately for another stage, attempt or phase, and if a service becomes
unreachable or reachable; else every ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from rstar2_train.api.base import ApiModel
from rstar2_train.api.contracts import PROGRESS_KEY, AttemptRecord, Outcome, Progress, outcome_key
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.pod.progress_config_map import ProgressConfigMap, ProgressNotWritten
from rstar2_train.tracking import shipper

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
WRITE_SECONDS = 10.0
"""Minimum interval of writes while the phase stays the same."""
RETRY_SECONDS = 60.0
"""How long a pod retries its last write. The outcome is also in the storage and in the termination message."""
DELETED_SECONDS = 10.0
"""How long it retries if the ConfigMap is deleted: the operator creates it again within seconds, unless its job is
deleted, and then each second holds the pod's accelerators."""
TERMINATION_LOG = Path("/dev/termination-log")
"""File of a container's termination message, which the kubelet creates."""


def due(progress: Progress, written: Progress | None, *, seconds: float) -> bool:
    """Return whether to write `progress`. `written`: the last written progress, `seconds` ago."""
    if written is None:
        return True
    if progress.unreachable.keys() != written.unreachable.keys():
        return True
    if progress.updated_at == written.updated_at and progress.mlflow_run_id == written.mlflow_run_id:
        return False
    changed = (progress.stage, progress.attempt, progress.phase) != (written.stage, written.attempt, written.phase)
    return changed or seconds >= WRITE_SECONDS


class ProgressMirror:
    """Copies progress and outcome of one attempt. Without a ConfigMap it writes nothing."""

    def __init__(
        self,
        config_map: ProgressConfigMap | None,
        state: JobState,
        *,
        stage: str,
        attempt: AttemptRecord,
        unreachable: Callable[[], dict[str, str]] = dict,
    ) -> None:
        """`unreachable`: returns what this pod cannot reach, in addition to the orchestrator's report."""
        self._unreachable = unreachable
        self._config_map = config_map
        self._state = state
        self._stage = stage
        self._attempt = attempt
        self._written: Progress | None = None
        self._written_at = 0.0
        self._write_error = ""
        self._read_error = ""

    async def follow(self) -> None:
        """Copy progress whenever it changes, until cancelled."""
        while True:
            await self._write_progress()
            await asyncio.sleep(POLL_SECONDS)

    async def conclude(self, outcome: Outcome) -> None:
        """Write the last progress and the outcome. Retries for RETRY_SECONDS."""
        await put_with_retries(self._config_map, self._final_data(outcome))

    async def _write_progress(self) -> None:
        progress = self._progress()
        if self._config_map is None or progress is None:
            return
        if not due(progress, self._written, seconds=time.monotonic() - self._written_at):
            return
        try:
            await self._config_map.put({PROGRESS_KEY: to_json(progress)})
        except ProgressNotWritten as error:
            if str(error) != self._write_error:
                log.warning("cannot write the progress to the API server, training continues: %s", error)
            self._write_error = str(error)
            await asyncio.sleep(POLL_SECONDS)
            return
        self._written, self._written_at, self._write_error = progress, time.monotonic(), ""

    def _progress(self) -> Progress | None:
        """Return the attempt's progress with its MLflow run; None if the orchestrator has not written any.

        Also None if it cannot be read, which is logged once: the mirror and the outcome must not fail with it.
        """
        try:
            progress = self._read()
        except (OSError, ValueError) as error:  # network storage may fail for a moment; the file may be damaged
            if str(error) != self._read_error:
                log.warning("cannot read the progress now: %s", error)
            self._read_error = str(error)
            return None
        self._read_error = ""
        return progress

    def _read(self) -> Progress | None:
        progress = self._state.progress()
        if progress is None or (progress.stage, progress.attempt) != (self._stage, self._attempt.attempt):
            return None
        if self._state.stage(self._stage).attempt() != self._attempt:
            return None
        return progress.model_copy(
            update={
                "mlflow_run_id": shipper.run_id(self._state.root, self._stage),
                "unreachable": progress.unreachable | self._unreachable(),
            }
        )

    def _final_data(self, outcome: Outcome) -> dict[str, str]:
        progress = self._progress()
        data = {} if progress is None else {PROGRESS_KEY: to_json(progress)}
        return data | {outcome_key(self._stage): to_json(outcome)}


async def put_with_retries(config_map: ProgressConfigMap | None, data: dict[str, str]) -> None:
    """Set keys of the ConfigMap. A failed write is retried for RETRY_SECONDS, then logged."""
    deadline = time.monotonic() + RETRY_SECONDS
    while config_map is not None:
        try:
            await config_map.put(data)
            return
        except ProgressNotWritten as error:
            now = time.monotonic()
            if error.deleted:
                deadline = min(deadline, now + DELETED_SECONDS)
            if now > deadline:
                log.error("cannot write %s to the API server: %s", ", ".join(data), error)
                return
        await asyncio.sleep(POLL_SECONDS)


def to_json(model: ApiModel) -> str:
    """Return a contract as one line of JSON."""
    return json.dumps(model.model_dump(mode="json", exclude_none=True))


def write_termination_message(text: str, file: Path = TERMINATION_LOG) -> None:
    """Write a container's termination message, if a kubelet has created the file. At most 4 KB are kept."""
    if file.exists():
        try:
            file.write_text(text[:4096], encoding="utf-8")
        except OSError as error:  # the disk of the node may be full
            log.warning("cannot write the termination message: %s", error)
