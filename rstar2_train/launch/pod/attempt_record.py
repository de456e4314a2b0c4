"""The attempt that may write into a stage's directory: pods of a lost node may run at the same time as the next one.

`attempt.py` acquires the record when a pod starts, and writes the outcome by it at the end.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, Outcome, write_model
from rstar2_train.api.state_dir import StageState, read_attempt


def acquire_attempt(file: Path, attempt: AttemptRecord) -> str:
    """Make `attempt` the only one that may write. Returns an error message if a later attempt of the job exists.

    Each attempt first creates a claim, a file of its own, and looks for later claims before and after it writes: an
    attempt that is delayed between its check and its write restores the record of the later one.
    """
    current = read_attempt(file)
    if current is not None and current.uid == attempt.uid and current.attempt > attempt.attempt:
        return _stale(attempt, current.attempt)
    claims = f"{file.name}.claim-{attempt.uid or ''}-"
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / f"{claims}{attempt.attempt}").touch()
    if not (later := _last_claim(file, claims)) > attempt.attempt:
        write_model(file, attempt)
        later = _last_claim(file, claims)
    if later > attempt.attempt:
        write_model(file, attempt.model_copy(update={"attempt": later}))
        return _stale(attempt, later)
    return ""


def _last_claim(file: Path, claims: str) -> int:
    """Return the highest attempt with a claim."""
    return max(int(path.name.rpartition("-")[2]) for path in file.parent.glob(f"{claims}*"))


def _stale(attempt: AttemptRecord, owner: int | None) -> str:
    number = "none" if owner is None else owner
    return f"StaleAttempt: attempt {attempt.attempt} is stale: the stage belongs to attempt {number}"


def write_outcome(folder: StageState, attempt: AttemptRecord, outcome: Outcome) -> str:
    """Write the outcome of `attempt`. Returns an error message if another attempt may write by now.

    The pods of an attempt that lost its node may finish long after the next attempt has started.
    """
    current = folder.attempt()
    if current != attempt:
        return _stale(attempt, None if current is None else current.attempt)
    if folder.outcome() != outcome:  # the orchestrator has usually written it, and the disk may be full by now
        write_model(folder.outcome_file, outcome)
    return ""
