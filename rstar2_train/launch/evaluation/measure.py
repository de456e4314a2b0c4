"""Run the one-stage job of `rstar2 eval` or `rstar2 filter`, as `rstar2 run` runs a job.

    evaluate.py, filter.py -> measured -> local.run.LocalRun -> engine, judge, environment, orchestrator
                                 `-> files of the stage -> the command's report

Engine and judge are child processes, unless --endpoint or --judge names one that runs already. Each sample is saved
when it is done (`evaluation/sample_cache.py`) and kept, so that the same command resumes, and a larger one reuses it.
If all samples exist, no process starts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rstar2_train.api.contracts import ExitCode, Outcome, write_model
from rstar2_train.api.state_dir import StageState
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleRequest
from rstar2_train.evaluation.settings import sample_file
from rstar2_train.launch.evaluation.one_stage_job import OneStageJob
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.run import LocalRun, RunEnd, prepare_machine
from rstar2_train.launch.local.run_view import RunView
from rstar2_train.launch.running_services import check_judge
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.leftovers import stop_leftovers

SaveResults = Callable[[Sequence[SampleResult], SampleCache], None]
"""Writes the stage's files from samples that all exist."""


class MeasurementFailed(Exception):
    """The stage did not finish. The message is for the user."""

    def __init__(self, message: str, *, code: int, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.code = code
        """Exit code of the command."""
        self.outcome = outcome
        """Outcome of the last attempt."""


@contextmanager
def measured(
    measurement: OneStageJob, view: RunView, *, save: SaveResults, with_trajectories: bool
) -> Iterator[StageState]:
    """Generate the missing samples; yield the stage's folder with its results, locked while the caller uses it.

    `save`: called instead of the stage if no sample is missing. `with_trajectories`: whether the stage saves them.
    Raises PreflightError, MeasurementFailed, and OSError for a full disk. Finished samples stay saved.
    """
    with preflight.locked(measurement.state):
        stop_leftovers(measurement.state.children_file)  # an orchestrator of a killed command writes samples
        job = preflight.with_uid(measurement.job, measurement.state)
        write_model(measurement.state.job_file, job)
        write_atomically(
            measurement.state.manifest_file, json.dumps(job.model_dump(by_alias=True, exclude_none=True)) + "\n"
        )
        request = SampleRequest(problems=measurement.problems, prompts=measurement.prompts, samples=measurement.samples)
        with SampleCache(
            sample_file(measurement.folder, measurement.settings), with_trajectories=with_trajectories
        ) as cache:
            saved = cache.load(request)
            if saved:
                view.print_line(f"Resuming: {len(saved)} of {len(request.pairs)} samples already done")
            if complete := len(saved) == len(request.pairs):
                save([saved[problem.id, sample] for problem, sample in request.pairs], cache)
        if not complete:
            _run(measurement, view)
        yield measurement.folder


def _run(measurement: OneStageJob, view: RunView) -> None:
    """Run the stage. Raises MeasurementFailed unless it ends well."""
    job = measurement.state.job()
    if measurement.running.judge and job.spec.needs_judge:
        asyncio.run(check_judge(measurement.running.judge, token=measurement.running.judge_token))
    packages = prepare_machine(job, measurement.state, view, running=measurement.running)
    measurement.folder.outcome_file.unlink(missing_ok=True)  # that of a smaller measurement
    local = LocalRun(
        job,
        measurement.state,
        view,
        packages=packages,
        title=f"rstar2 {job.metadata.name}: {measurement.model}",
        running=measurement.running,
        orchestrator_options=["--tokenizer", str(measurement.tokenizer), "--keep-samples"],
        ships=False,
    )
    end = asyncio.run(local.main())
    if end.ending != "completed":
        raise failure_of(end)


def failure_of(end: RunEnd) -> MeasurementFailed:
    """Return the failure of a run that did not complete, with the exit code of the command. Pure."""
    if end.ending == "suspended":
        message = "Stopped. Finished samples are saved; run the same command to resume."
        return MeasurementFailed(message, code=ExitCode.SUSPENDED)
    if end.outcome is not None and end.outcome.retryable:
        message = f"{end.outcome.message}\nNo report was written. Run the same command to retry the lost samples."
        return MeasurementFailed(message, code=ExitCode.RETRYABLE, outcome=end.outcome)
    return MeasurementFailed(end.outcome.message if end.outcome else end.failure, code=1, outcome=end.outcome)
