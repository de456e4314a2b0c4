"""Sends a job's journal to MLflow, from a process of its own: `python -m rstar2_train.tracking.shipper STATE`.

Second half of tracking. It follows the journal from the offset it has durably noted, waits while MLflow is away, and
ends with the process that started it. At-least-once: after a crash a batch may be sent again, which `mlflow_sink`
makes harmless. A process of its own, since importing and feeding MLflow takes seconds of CPU that rollouts need.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rstar2_train.api.state_dir import JobState
from rstar2_train.tracking.journal import Event, read
from rstar2_train.tracking.tracker import TrackingTarget, journal_file, read_target
from rstar2_train.utils.files import write_atomically

log = logging.getLogger("rstar2.track")
_POLL_SECONDS = 0.5
_MAX_WAIT_SECONDS = 5.0
_BATCH_EVENTS = 50
_LAST_TRY_SECONDS = 20.0
"""For how long a shipper whose parent died still tries to send what is left."""
_REFUSED = frozenset({400, 404, 405, 422, 501})
"""HTTP statuses of an event that the server will never take; anything else is worth another try."""


@dataclass
class ShippingPosition:
    """How far the journal has been sent: `track/shipped.json`."""

    uri: str
    experiment: str
    offset: int = 0
    """Bytes of the journal that are in MLflow."""
    runs: dict[str, str] = field(default_factory=dict)
    """Run ids by stage; the job's own under the empty name."""
    refused: int = 0
    """Events that the server would not take; see the log."""
    error: str = ""
    """Why nothing is being sent, or empty."""


@dataclass(frozen=True)
class ShippingProgress:
    """How far shipping has got."""

    sent: int
    """Bytes sent."""
    pending: int
    """Bytes that wait."""
    refused: int
    error: str

    @property
    def complete(self) -> bool:
        """Whether everything has been sent."""
        return self.pending == 0

    @property
    def missing(self) -> str:
        """What MLflow will never have, in words; empty when there is none."""
        return (
            f"MLflow has refused {self.refused} events for good: the shipper's log names them" if self.refused else ""
        )


def progress(state: Path) -> ShippingProgress:
    """How far the journal of `state` has been sent, without waiting."""
    position = _load(state, read_target(state))
    size = _size(state)
    return ShippingProgress(position.offset, size - position.offset, position.refused, position.error)


def run_id(state: Path, stage: str) -> str | None:
    """MLflow's id of the run of a stage, once it is known."""
    return _load(state, read_target(state)).runs.get(stage)


def command(state: Path) -> list[str]:
    """The shipping process's command line, for whoever supervises it; it ends when the calling process does."""
    return [sys.executable, "-m", "rstar2_train.tracking.shipper", str(state.resolve()), "--parent", str(os.getpid())]


class Shipper:
    """The shipping process, where nobody else supervises it."""

    def __init__(self, state: Path) -> None:
        """Its output goes to `logs/track.log` of the state folder."""
        self._state = state.resolve()
        self._log = JobState(self._state).logs / "track.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start shipping; returns at once."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command(self._state), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self, *, timeout: float) -> ShippingProgress:
        """Wait up to `timeout` seconds for the journal to be sent, then end the process; what is left stays."""
        deadline = time.monotonic() + timeout
        while self.alive and not progress(self._state).complete and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:  # inside a request; killing it loses nothing
                self._process.kill()
                self._process.wait()
        return progress(self._state)


def ship(state: Path, *, timeout: float) -> ShippingProgress:
    """Send what is in the journal and return: at the end of a run, and `rstar2 track sync`. Never raises for MLflow."""
    shipper = Shipper(state)
    if not progress(state).complete:
        shipper.start()
    return shipper.stop(timeout=timeout)


def send(state: Path, target: TrackingTarget) -> bool:
    """Send all there is, here and now; False when MLflow would not have it. Imports mlflow (seconds) where needed.

    The only place that knows of MLflow's failures: a server that is away is noted and tried again by `follow`.
    """
    position = _load(state, target)
    if position.offset >= _size(state):
        return True
    from mlflow.exceptions import MlflowException

    from rstar2_train.tracking.mlflow_sink import MlflowSink, RunNotFound

    try:
        sink = MlflowSink(target, position.runs)
        for events, end in _batches(state, position.offset):
            try:
                sink.apply(events)
            except MlflowException as error:
                if error.get_http_status_code() not in _REFUSED:
                    raise
                # One event spoils its batch. A new sink first sees whether it is the run that is gone.
                sink = MlflowSink(target, position.runs)
                position.refused += _one_by_one(sink, events)
            position.offset, position.error = end, ""
            _save(state, position)
    except RunNotFound as lost:
        log.warning("run %s is no longer in MLflow: sending everything again", lost)
        _save(state, ShippingPosition(target["uri"], target["experiment"]))
        return False
    except (MlflowException, OSError) as error:
        position.error = f"{type(error).__name__}: {error}"[:500]
        log.warning("MLflow is not available, will try again: %s", position.error)
        _save(state, position)
        return False
    return True


def follow(state: Path, *, parent: int | None) -> None:
    """Send the journal as it grows, until the parent process is gone. Waits while another shipper has it."""
    target = read_target(state)
    with _only_one(JobState(state).track / "ship.lock"):
        orphaned_at: float | None = None
        wait = _POLL_SECONDS
        while True:
            done = send(state, target)
            wait = _POLL_SECONDS if done else min(2 * wait, _MAX_WAIT_SECONDS)
            if parent is not None and os.getppid() != parent:
                orphaned_at = orphaned_at or time.monotonic()
                if done or time.monotonic() > orphaned_at + _LAST_TRY_SECONDS:
                    return
            time.sleep(wait)


def _one_by_one(sink: object, events: list[Event]) -> int:
    """Send events singly; those that the server refuses are logged, counted and left behind."""
    from mlflow.exceptions import MlflowException

    from rstar2_train.tracking.mlflow_sink import MlflowSink

    assert isinstance(sink, MlflowSink)
    refused = 0
    for event in events:
        try:
            sink.apply([event])
        except MlflowException as error:
            if error.get_http_status_code() not in _REFUSED:
                raise
            refused += 1
            log.error("MLflow refuses this event for good: %s: %.500s", error, json.dumps(event))
    return refused


def _batches(state: Path, offset: int) -> Iterator[tuple[list[Event], int]]:
    events: list[Event] = []
    end = offset
    for event, _, end in read(journal_file(state), offset):
        if event is None:
            log.warning("a torn line of the journal is skipped; it ends at byte %d", end)
            continue
        events.append(event)
        if len(events) == _BATCH_EVENTS:
            yield events, end
            events = []
    if end > offset:
        yield events, end


def _load(state: Path, target: TrackingTarget) -> ShippingPosition:
    """The noted position; the beginning when there is none, or it is one in another MLflow or a longer journal."""
    path = JobState(state).track / "shipped.json"
    if path.exists():
        position = ShippingPosition(**json.loads(path.read_text(encoding="utf-8")))
        same = (position.uri, position.experiment) == (target["uri"], target["experiment"])
        if same and position.offset <= _size(state):
            return position
    return ShippingPosition(target["uri"], target["experiment"])


def _save(state: Path, position: ShippingPosition) -> None:
    write_atomically(JobState(state).track / "shipped.json", json.dumps(asdict(position), indent=1) + "\n")


def _size(state: Path) -> int:
    path = journal_file(state)
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Command line of the shipping process."""
    parser = argparse.ArgumentParser(prog="python -m rstar2_train.tracking.shipper", description=__doc__)
    parser.add_argument("state", type=Path, help="the job's state folder")
    parser.add_argument("--parent", type=int, help="end when this process is no longer the parent")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then asks us to end
    os.nice(5)
    # Fail fast and let our own loop wait: MLflow's defaults would sit in one request for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    follow(arguments.state, parent=arguments.parent)


if __name__ == "__main__":
    main()
