"""The process that sends a job's journal to MLflow: `python -m rstar2_train.tracking.shipper STATE`.

It reads the journal from the last durable offset, retries while MLflow is unreachable, and exits with its parent
process. Delivery is at least once: after a crash a batch may be sent twice, and `mlflow_sink.py` is idempotent. It is a
separate process because MLflow takes seconds of CPU time that rollouts need.
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
from rstar2_train.tracking.journal import Event, read_entries
from rstar2_train.tracking.tracker import TrackingTarget, journal_file, read_target
from rstar2_train.utils.files import write_atomically

log = logging.getLogger("rstar2.track")
_POLL_SECONDS = 0.5
_MAX_WAIT_SECONDS = 5.0
_BATCH_EVENTS = 50
_ORPHAN_SECONDS = 20.0
"""Maximum time to send the remaining events after the death of the parent process."""
_REJECTED = frozenset({400, 404, 405, 422, 501})
"""HTTP statuses of an event that the server rejects permanently; other errors are retried."""


@dataclass
class ShippingPosition:
    """The position in the journal and the known runs: `track/shipped.json`."""

    uri: str
    experiment: str
    offset: int = 0
    """Bytes of the journal that were sent."""
    runs: dict[str, str] = field(default_factory=dict)
    """Run ids by stage; the job's run has the key JOB."""
    refused: int = 0
    """Events that the server rejected; the log has each one."""
    error: str = ""
    """Error of the last request; empty: none."""


@dataclass(frozen=True)
class ShippingProgress:
    """Progress of the shipper."""

    sent: int
    """Bytes sent."""
    pending: int
    """Bytes to send."""
    refused: int
    """Events that the server rejected."""
    error: str
    """Error of the last request; empty: none."""

    @property
    def complete(self) -> bool:
        """Whether the whole journal was sent."""
        return self.pending == 0

    @property
    def rejection_message(self) -> str:
        """Message about events that MLflow rejected; empty if there are none."""
        return f"MLflow rejected {self.refused} events; see the log of the MLflow shipper." if self.refused else ""


def progress(state: Path) -> ShippingProgress:
    """Return the progress of the journal of `state`, without waiting."""
    position = _load(state, read_target(state))
    size = _size(state)
    return ShippingProgress(position.offset, size - position.offset, position.refused, position.error)


def run_id(state: Path, stage: str) -> str | None:
    """Return MLflow's id of the run of a stage; None until it is known."""
    return _load(state, read_target(state)).runs.get(stage)


def command(state: Path) -> list[str]:
    """Return the command line of the shipper for a supervisor. The shipper exits with the calling process."""
    return [sys.executable, "-m", "rstar2_train.tracking.shipper", str(state.resolve()), "--parent", str(os.getpid())]


class Shipper:
    """The shipper as a child process without a supervisor. Its output is in `logs/track.log` of the state directory."""

    def __init__(self, state: Path) -> None:
        self._state = state.resolve()
        self._log = JobState(self._state).logs / "track.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and return immediately."""
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
        """Wait up to `timeout` seconds until the journal is sent, then terminate the process. Unsent events remain."""
        deadline = time.monotonic() + timeout
        while self.alive and not progress(self._state).complete and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:  # a request is in flight; killing the process loses no event
                self._process.kill()
                self._process.wait()
        return progress(self._state)


def ship(state: Path, *, timeout: float) -> ShippingProgress:
    """Send the journal and return: at the end of a job, and for `rstar2 track sync`. MLflow errors do not raise."""
    shipper = Shipper(state)
    if not progress(state).complete:
        shipper.start()
    return shipper.stop(timeout=timeout)


def send(state: Path, target: TrackingTarget) -> bool:
    """Send the rest of the journal in this process; return False after an error. Imports mlflow if there is any event.

    Handles all MLflow errors: an unreachable server is recorded in the position, and `follow` retries.
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
                if error.get_http_status_code() not in _REJECTED:
                    raise
                # One rejected event fails its batch. A new sink first checks whether a run was deleted.
                sink = MlflowSink(target, position.runs)
                position.refused += _send_singly(sink, events)
            position.offset, position.error = end, ""
            _save(state, position)
    except RunNotFound as error:
        log.warning("MLflow run %s was deleted; sending the whole journal again", error)
        _save(state, ShippingPosition(target["uri"], target["experiment"]))
        return False
    except (MlflowException, OSError) as error:
        position.error = f"{type(error).__name__}: {error}"[:500]
        log.warning("MLflow is not available; retrying: %s", position.error)
        _save(state, position)
        return False
    return True


def follow(state: Path, *, parent: int | None) -> None:
    """Send the journal as it grows, until the parent process exits. Waits while another shipper has the lock."""
    target = read_target(state)
    with _exclusive_lock(JobState(state).track / "ship.lock"):
        orphaned_at: float | None = None
        wait = _POLL_SECONDS
        while True:
            done = send(state, target)
            wait = _POLL_SECONDS if done else min(2 * wait, _MAX_WAIT_SECONDS)
            if parent is not None and os.getppid() != parent:
                orphaned_at = orphaned_at or time.monotonic()
                if done or time.monotonic() > orphaned_at + _ORPHAN_SECONDS:
                    return
            time.sleep(wait)


def _send_singly(sink: object, events: list[Event]) -> int:
    """Send each event in its own request. Log and skip rejected events, and return their number."""
    from mlflow.exceptions import MlflowException

    from rstar2_train.tracking.mlflow_sink import MlflowSink

    assert isinstance(sink, MlflowSink)
    rejected = 0
    for event in events:
        try:
            sink.apply([event])
        except MlflowException as error:
            if error.get_http_status_code() not in _REJECTED:
                raise
            rejected += 1
            log.error("MLflow rejected an event; skipping it: %s: %.500s", error, json.dumps(event))
    return rejected


def _batches(state: Path, offset: int) -> Iterator[tuple[list[Event], int]]:
    events: list[Event] = []
    end = offset
    for event, end in read_entries(journal_file(state), offset):
        if event is None:
            log.warning("skipping an incomplete line of the journal before byte %d", end)
            continue
        events.append(event)
        if len(events) == _BATCH_EVENTS:
            yield events, end
            events = []
    if end > offset:
        yield events, end


def _load(state: Path, target: TrackingTarget) -> ShippingPosition:
    """Return the saved position, or the start if there is none, if MLflow changed, or if the journal is shorter."""
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
def _exclusive_lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Parse the command line and run the shipper."""
    parser = argparse.ArgumentParser(prog="python -m rstar2_train.tracking.shipper", description=__doc__)
    parser.add_argument("state", type=Path, help="state directory of the job")
    parser.add_argument("--parent", type=int, help="exit when this process is no longer the parent")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and then terminates this process
    os.nice(5)
    # Fail fast, because this module has its own retry loop. By default, one MLflow request may block for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # by default it reports its use to mlflow-telemetry.io
    follow(arguments.state, parent=arguments.parent)


if __name__ == "__main__":
    main()
