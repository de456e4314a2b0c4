"""Where everything of a job lies in its state folder: the one place that knows the names.

Locally the folder is `./.rstar2/<job>/`; in a cluster it is the job's volume. Every room that reads or writes state
asks here. Pure: makes paths, touches no file except in `read_*`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, Outcome, Progress
from rstar2_train.api.job import AgenticRLJob


@dataclass(frozen=True)
class StageState:
    """The folder of one stage."""

    root: Path

    @property
    def attempt_file(self) -> Path:
        """The `AttemptRecord` that may write here; a writer that is another one must stop."""
        return self.root / "attempt.json"

    @property
    def leaving_file(self) -> Path:
        """The `AttemptRecord` of a pod that was asked to stop: its driver writes a checkpoint and ends as suspended."""
        return self.root / "leaving.json"

    @property
    def outcome_file(self) -> Path:
        """The outcome of the last attempt that ended."""
        return self.root / "outcome.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of complete checkpoints."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """Hugging Face folder that the stage hands on."""
        return self.root / "model"

    @property
    def trajectories(self) -> Path:
        """Folder with one Parquet file a step."""
        return self.root / "trajectories"

    @property
    def evaluation_file(self) -> Path:
        """What the stage's final model reached on the held-out set."""
        return self.root / "evaluation.json"

    @property
    def evaluation_trajectories(self) -> Path:
        """The trajectories behind it."""
        return self.root / "evaluation"

    @property
    def samples(self) -> Path:
        """Folder of the samples of a measurement that has not ended, so that its next attempt need not ask them."""
        return self.root / "samples"

    @property
    def kept_file(self) -> Path:
        """Problems that a Filter stage kept."""
        return self.root / "kept.jsonl"

    def attempt(self) -> AttemptRecord | None:
        """The present attempt, or None before the first."""
        return read_attempt(self.attempt_file)

    def outcome(self) -> Outcome | None:
        """The last outcome, or None when no attempt has ended."""
        if not self.outcome_file.exists():
            return None
        return Outcome.model_validate_json(self.outcome_file.read_text(encoding="utf-8"))

    @property
    def done(self) -> bool:
        """Whether the stage ended well, so that the next may start."""
        outcome = self.outcome()
        return outcome is not None and outcome.ended_well


@dataclass(frozen=True)
class JobState:
    """The folder of one job."""

    root: Path

    @property
    def job_file(self) -> Path:
        """The validated job as JSON, the same for every role."""
        return self.root / "job.json"

    @property
    def manifest_file(self) -> Path:
        """The manifest as the user wrote it."""
        return self.root / "manifest.yaml"

    @property
    def progress_file(self) -> Path:
        """What the running stage has reached."""
        return self.root / "progress.json"

    @property
    def report_file(self) -> Path:
        """The table of stages."""
        return self.root / "report.json"

    @property
    def weights(self) -> Path:
        """Folder of the weights that engines load, one folder a version."""
        return self.root / "weights"

    @property
    def logs(self) -> Path:
        """Logs of child processes."""
        return self.root / "logs"

    @property
    def children_file(self) -> Path:
        """The child processes of the run that has the folder, for the next one to find."""
        return self.root / "children.json"

    @property
    def track(self) -> Path:
        """Folder of the tracking journal."""
        return self.root / "track"

    @property
    def mlflow_database(self) -> Path:
        """MLflow's sqlite file, where the job names no MLflow server."""
        return self.root / "mlflow.db"

    @property
    def mlflow_artifacts(self) -> Path:
        """Artifacts of the runs in it."""
        return self.root / "mlruns"

    @property
    def start_file(self) -> Path:
        """Start time and UID of a job in a cluster; `rstar2 run` keeps the time itself."""
        return self.root / "began.json"

    @property
    def analysis(self) -> Path:
        """Pages, plots and figures that `rstar2 analyse` makes of the trajectories."""
        return self.root / "analysis"

    @property
    def entropies(self) -> Path:
        """Token entropies that an analysis has computed, so that the next need not."""
        return self.root / "entropies"

    @property
    def redis(self) -> Path:
        """Folder of Redis' append-only file."""
        return self.root / "redis"

    @property
    def seconds_file(self) -> Path:
        """How long `rstar2 run` has run the job so far, over all its runs."""
        return self.root / "seconds.json"

    def seconds(self) -> float:
        """Seconds that the job has run; 0 before the end of its first run."""
        return float(self.seconds_file.read_text(encoding="utf-8")) if self.seconds_file.exists() else 0.0

    def stage(self, name: str) -> StageState:
        """The folder of stage `name`."""
        return StageState(self.root / "stages" / name)

    def job(self) -> AgenticRLJob:
        """The job file, validated again."""
        return AgenticRLJob.model_validate_json(self.job_file.read_text(encoding="utf-8"))

    def progress(self) -> Progress | None:
        """The last progress, or None before the first."""
        if not self.progress_file.exists():
            return None
        return Progress.model_validate_json(self.progress_file.read_text(encoding="utf-8"))


def read_attempt(file: Path) -> AttemptRecord | None:
    """The attempt that a file names, or None when there is no such file."""
    return AttemptRecord.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None
