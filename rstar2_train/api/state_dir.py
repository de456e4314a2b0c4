"""Paths in a job's state directory: all names are defined here.

With `rstar2 run` the directory is `./.rstar2/<job>/`; in a cluster it is on the job's volume. Every package that reads
or writes state gets its paths from here. Pure, except for methods that return the content of a file.
"""

from __future__ import annotations

import errno
import math
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, Outcome, Progress
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_files import read_state

ENGINE_WEIGHTS = "engine_weights"
"""Folder of a job's bucket with the weights for engines that have no common disk with the trainer."""


@dataclass(frozen=True)
class StageState:
    """The directory of one stage."""

    root: Path

    @property
    def attempt_file(self) -> Path:
        """The `AttemptRecord` that may write into this directory; every other writer must stop."""
        return self.root / "attempt.json"

    @property
    def outcome_file(self) -> Path:
        """Outcome of the last finished attempt."""
        return self.root / "outcome.json"

    @property
    def checkpoints(self) -> Path:
        """Directory of complete checkpoints."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """Final model of the stage, as a Hugging Face directory."""
        return self.root / "model"

    @property
    def tokens(self) -> Path:
        """Tokenised demonstrations of an SFT stage."""
        return self.root / "tokens"

    @property
    def trajectories(self) -> Path:
        """Directory with one Parquet file per step."""
        return self.root / "trajectories"

    @property
    def sampling_file(self) -> Path:
        """Sampling settings of the trajectories that are not trained on yet."""
        return self.root / "sampling.json"

    @property
    def evaluation_file(self) -> Path:
        """Results of the final model on the held-out set."""
        return self.root / "evaluation.json"

    @property
    def evaluation_page(self) -> Path:
        """The same results for a browser."""
        return self.root / "evaluation.html"

    @property
    def evaluation_trajectories(self) -> Path:
        """Trajectories of that measurement."""
        return self.root / "evaluation"

    @property
    def samples(self) -> Path:
        """Directory with the samples of an unfinished measurement, which its next attempt reuses."""
        return self.root / "samples"

    @property
    def kept_file(self) -> Path:
        """Problems that a Filter stage kept."""
        return self.root / "kept.jsonl"

    @property
    def filter_report_file(self) -> Path:
        """How often each problem of a Filter stage was solved."""
        return self.root / "kept.report.json"

    def attempt(self) -> AttemptRecord | None:
        """Return the current attempt, None before the first. Raises UnreadableState."""
        return read_attempt(self.attempt_file)

    def outcome(self) -> Outcome | None:
        """Return the last outcome, None if no attempt has finished. Raises UnreadableState."""
        return read_state(self.outcome_file, Outcome.model_validate_json)

    @property
    def done(self) -> bool:
        """Whether the stage succeeded, so that the next may start."""
        outcome = self.outcome()
        return outcome is not None and outcome.ended_well


@dataclass(frozen=True)
class JobState:
    """The directory of one job."""

    root: Path

    @property
    def job_file(self) -> Path:
        """The validated job as JSON, the same for every role."""
        return self.root / "job.json"

    @property
    def packages_lock(self) -> Path:
        """Exact versions of the sandbox's packages, if the job has `spec.judge.packages`."""
        return self.root / "packages.lock"

    @property
    def manifest_file(self) -> Path:
        """The original manifest."""
        return self.root / "manifest.yaml"

    @property
    def progress_file(self) -> Path:
        """Progress of the running stage."""
        return self.root / "progress.json"

    @property
    def report_file(self) -> Path:
        """Report with one row per stage."""
        return self.root / "report.json"

    @property
    def weights(self) -> Path:
        """Directory of exported weights, with one directory per weight version."""
        return self.root / "weights"

    @property
    def logs(self) -> Path:
        """Directory with the logs of child processes."""
        return self.root / "logs"

    @property
    def children_file(self) -> Path:
        """Child processes of the current run, which the next run terminates if they are left."""
        return self.root / "children.json"

    @property
    def device_lock(self) -> Path:
        """Lock file that the trainer holds while it has the device, if trainer and engine time-share one GPU."""
        return self.root / "device.lock"

    @property
    def track(self) -> Path:
        """Directory of the tracking journal."""
        return self.root / "track"

    @property
    def mlflow_database(self) -> Path:
        """MLflow's SQLite file, used if the job sets no MLflow server."""
        return self.root / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of the runs in that file."""
        return self.root / "mlruns"

    @property
    def start_file(self) -> Path:
        """Start time of the job in a cluster, and its UID; `rstar2 run` needs only `seconds_file`."""
        return self.root / "start.json"

    @property
    def chat_date_file(self) -> Path:
        """Date of the job's first attempt, if the chat template writes the current date into prompts."""
        return self.root / "chat_date"

    @property
    def analysis(self) -> Path:
        """Directory with the pages and plots of `rstar2 analyse`."""
        return self.root / "analysis"

    @property
    def entropies(self) -> Path:
        """Directory with computed token entropies, which the next analysis reuses."""
        return self.root / "entropies"

    @property
    def redis(self) -> Path:
        """Directory of Redis' append-only file."""
        return self.root / "redis"

    @property
    def seconds_file(self) -> Path:
        """Seconds that the job has run: the sum over its runs, in a cluster the time from its start to its report."""
        return self.root / "seconds.json"

    def seconds(self) -> float:
        """Return the seconds that the job has run, 0 before the end of its first run. Raises UnreadableState."""
        return read_state(self.seconds_file, _duration) or 0.0

    def stage(self, name: str) -> StageState:
        """Return the directory of stage `name`."""
        return StageState(self.root / "stages" / name)

    def job(self) -> AgenticRLJob:
        """Return the job of the job file. Raises UnreadableState."""
        job = read_state(self.job_file, AgenticRLJob.model_validate_json)
        if job is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(self.job_file))
        return job

    def progress(self) -> Progress | None:
        """Return the last progress, None before the first. Raises UnreadableState."""
        return read_state(self.progress_file, Progress.model_validate_json)


def read_attempt(file: Path) -> AttemptRecord | None:
    """Return the attempt of a file, None if the file does not exist. Raises UnreadableState."""
    return read_state(file, AttemptRecord.model_validate_json)


def _duration(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text.strip()} is no duration in seconds")
    return seconds
