"""The last pod of a job: writes the report, closes the MLflow run and sends the unsent tracking events.

Prints the tables of `rstar2 report`, so that `kubectl logs job/<job>-report` shows the result of the job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from rstar2_train.api.contracts import ExitCode, StageFailed, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.evaluation.job_report import build_report, write_report
from rstar2_train.launch.pod.bucket import PodBucket
from rstar2_train.storage.pod_starts import report_start
from rstar2_train.storage.publication import Fenced
from rstar2_train.tracking.shipper import ship
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.files import write_atomically

BUCKET_SECONDS = 60.0
"""How long the requests to the bucket are repeated."""
SHIP_SECONDS = 150.0
"""Time limit for MLflow. After it, the pod fails and the Job retries it."""


def report(job_file: Path, state_root: Path, *, ending: Literal["completed", "failed", "deleted"]) -> int:
    """Write the report, close the run, send unsent tracking events; return the exit code."""
    job = AgenticRLJob.model_validate_json(job_file.read_text(encoding="utf-8"))
    state = JobState(state_root)
    bucket = PodBucket(job, state, report_start(job), start_seconds=BUCKET_SECONDS)
    try:
        bucket.open()
        code = _write(job, state, ending)
        bucket.publish()
    except (StageFailed, Fenced) as error:
        print(f"the report is not in the bucket: {error}")
        return ExitCode.RETRYABLE
    return code


def _write(job: AgenticRLJob, state: JobState, ending: Literal["completed", "failed", "deleted"]) -> ExitCode:
    write_model(state.job_file, job)
    if state.start_file.exists():
        start = json.loads(state.start_file.read_text(encoding="utf-8"))["at"]
        write_atomically(state.seconds_file, json.dumps(time.time() - float(start)))
    path = write_report(state.root, build_report(state.root, job, seconds=state.seconds()))
    command = [sys.executable, "-m", "rstar2_train.cli", "report", state.root.name, "--state", str(state.root.parent)]
    subprocess.run(command, check=False)  # an error of it is in the log, and the report is written
    tracker = Tracker.for_job(job, state.root)
    tracker.log_artifact("", path)
    tracker.end_job(ending)
    tracker.close()
    shipped = ship(state.root, timeout=SHIP_SECONDS)
    if not shipped.complete:
        print(f"MLflow does not have everything ({shipped.error}). The journal keeps it: {path.parent / 'track'}")
        return ExitCode.RETRYABLE
    if shipped.rejection_message:
        print(shipped.rejection_message)
    return ExitCode.DONE
