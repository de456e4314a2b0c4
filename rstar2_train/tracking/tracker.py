"""Writes the tracking events of a job to the journal: runs, parameters, metrics, traces and artifacts.

Used by the orchestrator and the launchers. No call waits for a tracking server or fails because of it: `shipper.py`
sends the journal to MLflow. A job has one parent run, and each stage one nested run. A restarted stage continues its
run.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.journal import Event, Journal, read_entries
from rstar2_train.tracking.traces import Decode, build_trace
from rstar2_train.utils.files import write_atomically

JOB = ""
"""Key of the job's own run, in place of a stage name."""
Ending = Literal["completed", "advanced", "suspended", "failed", "deleted"]
_STATUS = {
    "completed": "FINISHED",
    "advanced": "FINISHED",
    "suspended": "KILLED",
    "failed": "FAILED",
    "deleted": "KILLED",
}


class TrackingTarget(TypedDict):
    """The destination of a job's journal, and the identity of its runs."""

    uri: str
    """MLflow tracking URI."""
    artifacts: str | None
    """Folder for artifacts; None: the default of the server."""
    experiment: str
    job: str
    uid: str


def journal_file(state: Path) -> Path:
    """Return the path of the journal in the state directory `state`."""
    return JobState(state).track / "journal.jsonl"


def read_target(state: Path) -> TrackingTarget:
    """Return the destination of the journal. Raises FileNotFoundError if the job was never tracked."""
    target: TrackingTarget = json.loads((JobState(state).track / "target.json").read_text(encoding="utf-8"))
    return target


class Tracker:
    """Writes tracking events of one job. Several processes may write to one state directory."""

    def __init__(
        self, state: Path, *, job: str, uri: str | None = None, experiment: str = "rstar2", uid: str | None = None
    ) -> None:
        """`uri`: MLflow tracking URI; None: a SQLite file in `state`. `uid`: identity of the job in MLflow; None: a
        random one, stored in `state`.
        """
        paths = JobState(state.resolve())
        local = f"sqlite:///{paths.mlflow_database}"
        self.uid = uid or _stored_uid(paths.track / "uid")
        target = TrackingTarget(
            uri=uri or local,
            artifacts=None if uri else paths.mlflow_artifacts.as_uri(),
            experiment=experiment,
            job=job,
            uid=self.uid,
        )
        write_atomically(paths.track / "target.json", json.dumps(target, indent=1) + "\n")
        self._root = paths.root
        self._journal = Journal(journal_file(state))

    @classmethod
    def for_job(cls, job: AgenticRLJob, state: Path) -> Self:
        """Return a tracker with the tracking settings of the job's spec."""
        mlflow = job.spec.tracking.mlflow
        return cls(state, job=job.metadata.name, uri=mlflow.uri, experiment=mlflow.experiment, uid=job.metadata.uid)

    def start_job(self, params: Mapping[str, Any]) -> None:
        """Start or reopen the job's run. Nested `params` are flattened to `a.b.c`."""
        self._write({"kind": "start", "run": JOB, "params": flatten(params), "tags": {}})

    def start_stage(self, stage: str, *, type: str, attempt: int, params: Mapping[str, Any]) -> None:
        """Start the run of a stage, or continue it with the next attempt."""
        tags = {"rstar2.type": type, "rstar2.attempt": str(attempt)}
        self._write({"kind": "start", "run": stage, "params": flatten(params), "tags": tags})
        self.log_metrics(stage, step=0, values={"attempt": attempt})

    def end_stage(self, stage: str, ending: Ending, *, reason: str = "") -> None:
        """Finish the run of a stage with the status of its outcome."""
        tags = {"rstar2.outcome": ending, "rstar2.reason": reason}
        self._write({"kind": "end", "run": stage, "status": _STATUS[ending], "tags": tags})

    def end_job(self, ending: Ending) -> None:
        """Finish the job's run with the status of its outcome, after the open runs of its stages.

        An orchestrator that is killed leaves the run of its stage open.
        """
        for run in self._open_runs():
            if run != JOB:
                self.end_stage(run, ending)
        self.end_stage(JOB, ending)

    def is_open(self) -> bool:
        """Return whether the job's run was started, and not finished since."""
        return JOB in self._open_runs()

    def log_metrics(self, stage: str, *, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step; `stage` may be JOB. MLflow groups names by the prefix before `/`."""
        self._write(
            {"kind": "metrics", "run": stage, "step": step, "values": {key: float(v) for key, v in values.items()}}
        )

    def log_traces(self, stage: str, *, step: int, trajectories: Sequence[Trajectory], decode: Decode) -> None:
        """Log trajectories as traces. `traces.select_trajectories` selects them."""
        for trajectory in trajectories:
            trace = build_trace(trajectory, uid=self.uid, stage=stage, step=step, decode=decode, now=time.time())
            self._write({"kind": "trace", "run": stage, "trace": trace})

    def log_artifact(self, stage: str, path: Path) -> None:
        """Log a file as an artifact of a run. The shipper reads the file when it sends the event."""
        self._write({"kind": "artifact", "run": stage, "path": str(path.resolve())})

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _open_runs(self) -> list[str]:
        """Return the runs that were started, in the order of their first start, and not finished since."""
        is_open: dict[str, bool] = {}
        for event, _ in read_entries(journal_file(self._root)):
            if event is not None and event["kind"] in ("start", "end"):
                is_open[event["run"]] = event["kind"] == "start"
        return [run for run, value in is_open.items() if value]

    def _write(self, event: Event) -> None:
        # The time is set here, so that sending an event twice gives the same event.
        self._journal.append({"time": int(time.time() * 1000), **event})


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as `a.b.c: text`. List items get their index; None is omitted."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list | tuple):
            flat |= flatten({str(index): item for index, item in enumerate(value)}, f"{name}.")
        elif value is not None:
            flat[name] = str(value)
    return flat


def ui_command(state: Path) -> str:
    """Return how to open a job's runs in a browser: a shell command for a local file, else the server's address."""
    target = read_target(state)
    if target["artifacts"] is None:
        return f"open {target['uri']}"
    program = os.path.relpath(Path(sys.executable).parent / "mlflow")
    return f"{shlex.quote(program)} ui --backend-store-uri {shlex.quote(target['uri'])}"


def _stored_uid(path: Path) -> str:
    if not path.exists():
        write_atomically(path, f"{uuid.uuid4()}\n")
    return path.read_text(encoding="utf-8").strip()
