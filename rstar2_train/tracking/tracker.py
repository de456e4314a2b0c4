"""Records what a job does: runs, parameters, metrics, traces, artifacts. Writes the journal, and nothing else.

Called by the drivers and by `rstar2 run`. No call here waits for, or fails with, a tracking server: the shipper
(`track.ship`) sends the journal to MLflow on its own, now or later. One parent run a job, one nested run a stage;
a stage that is restarted goes on in the same run.
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
from rstar2_train.tracking.journal import Event, Journal
from rstar2_train.tracking.traces import Decode, build_trace
from rstar2_train.utils.files import write_atomically

JOB = ""
"""The key of the job's own run, where a stage's name would stand."""
Ending = Literal["completed", "advanced", "suspended", "failed"]
_STATUS = {"completed": "FINISHED", "advanced": "FINISHED", "suspended": "KILLED", "failed": "FAILED"}


class TrackingTarget(TypedDict):
    """Where a job's journal is to be sent, and what its runs are found by."""

    uri: str
    """MLflow tracking URI."""
    artifacts: str | None
    """Folder for artifacts; None: the server decides."""
    experiment: str
    job: str
    uid: str


def journal_file(state: Path) -> Path:
    """The journal of the job whose state folder is `state`."""
    return JobState(state).track / "journal.jsonl"


def read_target(state: Path) -> TrackingTarget:
    """Where the journal goes. Raises FileNotFoundError when the job was never tracked."""
    target: TrackingTarget = json.loads((JobState(state).track / "target.json").read_text(encoding="utf-8"))
    return target


class Tracker:
    """Writes tracking events of one job. Any number of processes may track into one state folder."""

    def __init__(
        self, state: Path, *, job: str, uri: str | None = None, experiment: str = "rstar2", uid: str | None = None
    ) -> None:
        """`uri`: MLflow's; None: a sqlite file in `state`. `uid`: what identifies the job in MLflow; None: made once
        for this state folder and kept in it."""
        paths = JobState(state.resolve())
        local = f"sqlite:///{paths.mlflow_database}"
        self.uid = uid or _own_uid(paths.track / "uid")
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
    def of(cls, job: AgenticRLJob, state: Path) -> Self:
        """The tracker that a job's spec asks for."""
        mlflow = job.spec.tracking.mlflow
        return cls(state, job=job.metadata.name, uri=mlflow.uri, experiment=mlflow.experiment, uid=job.metadata.uid)

    def start_job(self, params: Mapping[str, Any], *, tags: Mapping[str, str] | None = None) -> None:
        """Open the job's run, or open it again. `params` may be nested; they are flattened to `a.b.c`."""
        self._write({"kind": "start", "run": JOB, "params": flatten(params), "tags": dict(tags or {})})

    def start_stage(self, stage: str, *, type: str, attempt: int, params: Mapping[str, Any]) -> None:
        """Open the run of a stage, or go on in it with the next attempt."""
        tags = {"rstar2.type": type, "rstar2.attempt": str(attempt)}
        self._write({"kind": "start", "run": stage, "params": flatten(params), "tags": tags})
        self.metrics(stage, step=0, values={"attempt": attempt})

    def end_stage(self, stage: str, ending: Ending, *, reason: str = "") -> None:
        """Close the run of a stage with the status that its outcome stands for."""
        self._end(stage, ending, reason)

    def end_job(self, ending: Ending, *, reason: str = "") -> None:
        """Close the job's run; also after a failure."""
        self._end(JOB, ending, reason)

    def metrics(self, stage: str, *, step: int, values: Mapping[str, float]) -> None:
        """Metrics of one step; `stage` may be JOB. Names are grouped in MLflow by what stands before their `/`."""
        self._write(
            {"kind": "metrics", "run": stage, "step": step, "values": {key: float(v) for key, v in values.items()}}
        )

    def traces(self, stage: str, *, step: int, trajectories: Sequence[Trajectory], decode: Decode) -> None:
        """Trajectories as traces with a span a generation, tool call and reward (`traces.pick` chooses them)."""
        for trajectory in trajectories:
            trace = build_trace(trajectory, uid=self.uid, stage=stage, step=step, decode=decode, now=time.time())
            self._write({"kind": "trace", "run": stage, "trace": trace})

    def artifact(self, stage: str, path: Path, *, folder: str = "") -> None:
        """A file that belongs to a run, under `folder` of its artifacts. It is read when it is sent, not now."""
        self._write({"kind": "artifact", "run": stage, "path": str(path.resolve()), "folder": folder})

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _end(self, run: str, ending: Ending, reason: str) -> None:
        tags = {"rstar2.outcome": ending, "rstar2.reason": reason}
        self._write({"kind": "end", "run": run, "status": _STATUS[ending], "tags": tags})

    def _write(self, event: Event) -> None:
        # The time is fixed here: an event that is sent twice is the same event.
        self._journal.append({"time": int(time.time() * 1000), **event})


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `a.b.c: text`; lists by index; None is left out."""
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
    """What to do to see a job's tracking in a browser: a command for a local file, else the server's address."""
    target = read_target(state)
    if target["artifacts"] is None:
        return f"open {target['uri']}"
    program = os.path.relpath(Path(sys.executable).parent / "mlflow")
    return f"{shlex.quote(program)} ui --backend-store-uri {shlex.quote(target['uri'])}"


def _own_uid(path: Path) -> str:
    if not path.exists():
        write_atomically(path, f"{uuid.uuid4()}\n")
    return path.read_text(encoding="utf-8").strip()
