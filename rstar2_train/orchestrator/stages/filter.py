"""The Filter stage: samples every problem several times and keeps the problems that the policy does not always solve.

Paper §4.3: before the last stage, 8 rollouts per problem; problems solved in all 8 are dropped. Needs engines and
judge, no trainer. All problems are sampled as one stream, so that no engine waits for the slowest trajectory. Each
finished sample is saved, so that a restart repeats none. `rstar2 filter` runs this stage for any model and file.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter
from pathlib import Path

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import FilterStage
from rstar2_train.evaluation.difficulty import SEED_NAME, FilterReport, build_filter_report, save_filter
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.settings import sample_file
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.problem_files import load_problems
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.validation import measured_settings, needs_validation, run_validation
from rstar2_train.rollout import trajectory_store

TRACKED_SAMPLES = 512
"""Samples between two points of the tracked figures, and at most in a file of trajectories."""


class FilterProgress:
    """Counts the problems whose samples are finished, and how many of them are kept."""

    def __init__(self, ctx: StageContext, settings: FilterStage) -> None:
        self._ctx = ctx
        self._settings = settings
        self._samples = 0
        self._finished: Counter[str] = Counter()
        self._solved: Counter[str] = Counter()
        self._seen = 0
        self._kept = 0

    def add(self, result: SampleResult, *, saved: bool) -> None:
        """Count a sample, and report the figures if it is the last one of its problem.

        `saved`: whether an earlier attempt finished it, which also sent the figures to the tracking journal.
        """
        self._samples += 1
        self._finished[result.prompt_id] += 1
        self._solved[result.prompt_id] += result.correct
        if self._finished[result.prompt_id] == self._settings.samples:
            self._seen += 1
            self._kept += self._solved[result.prompt_id] < self._settings.drop_solved
            self._ctx.progress = self._ctx.progress.model_copy(update={"metrics": self.figures()})
        if self._samples % TRACKED_SAMPLES == 0 and not saved:
            self.track()

    def figures(self) -> dict[str, float]:
        """Return the number of kept problems and of those with all samples finished, and their ratio."""
        return {"kept": float(self._kept), "seen": float(self._seen), "kept_ratio": self._kept / max(1, self._seen)}

    def track(self) -> None:
        """Send the figures to the tracking journal. The step is the number of finished samples."""
        values = {f"filter/{name}": value for name, value in self.figures().items()}
        self._ctx.tracker.log_metrics(self._ctx.stage.name, step=self._samples, values=values)


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.stage.filter
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    chat_format = await asyncio.to_thread(sessions.chat_format, ctx, source.model)
    async with sessions.rollouts(ctx, chat_format) as rollouts:
        await rollouts.weights.push_folder(source.model, source.version)
        if source.stage is not None and needs_validation(ctx, source.stage):
            await run_validation(ctx, rollouts, source.stage, step=None)
        ctx.report(phase="Filtering")
        report = await _filter(ctx, settings, rollouts, source.model)
    if not report.kept:
        message = f"the policy solves all {report.problems} problems: use harder problems, or remove the later stages"
        raise StageFailed("NothingToTrain", message, retryable=False)
    return ctx.outcome("completed", "Completed", f"kept {report.kept} of {report.problems} problems")


async def _filter(ctx: StageContext, settings: FilterStage, rollouts: RolloutSession, model: Path) -> FilterReport:
    """Sample the problems; write the kept ones, the report, and the trajectories.

    If the samples are kept for a larger filter, only their results are saved: the tokens need a thousand times more.
    """
    started = time.monotonic()
    problems = await asyncio.to_thread(load_problems, settings.data)
    measured = await measured_settings(ctx, model, settings.sampling, seed_name=SEED_NAME)
    progress = FilterProgress(ctx, settings)
    with SampleCache(sample_file(ctx.folder, measured), with_trajectories=not ctx.keep_samples) as cache:
        results = await rollouts.measure(
            problems,
            samples=settings.samples,
            sampling=settings.sampling,
            seed=(ctx.seed, SEED_NAME),
            cache=cache,
            on_sample=progress.add,
        )
        ctx.check_current()
        if not ctx.keep_samples:
            await asyncio.to_thread(_write_trajectories, ctx.folder.trajectories, cache, settings.samples)
    progress.track()
    report = build_filter_report(
        problems,
        results,
        model=ctx.endpoints.served_model or str(model),
        endpoint=ctx.endpoints.engines[0] if ctx.endpoints.served_model else None,
        file=settings.data,
        settings=measured,
        samples=settings.samples,
        drop_solved=settings.drop_solved,
        seconds=time.monotonic() - started,
    )
    save_filter(ctx.folder, report, problems)
    ctx.report(metrics=progress.figures())
    return report


def _write_trajectories(folder: Path, cache: SampleCache, samples: int) -> None:
    """Write all trajectories into files of whole problems, which a reader can hold in memory.

    Files of an earlier attempt, whose data may have been others, are deleted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    rows = cache.trajectories()
    per_file = samples * max(1, TRACKED_SAMPLES // samples)
    for number in itertools.count(1):
        first = next(rows, None)
        if first is None:
            return
        rest = itertools.islice(rows, per_file - 1)
        trajectory_store.write(trajectory_store.step_path(folder, number), itertools.chain([first], rest))
