"""The Filter stage: samples every problem several times and keeps the problems that the policy does not always solve.

Paper §4.3: before the last stage, 8 rollouts per problem; problems solved in all 8 are dropped. Needs engines and
judge, no trainer. All problems are sampled as one stream, so that no engine waits for the slowest trajectory of a
slice. Finished samples are written in slices, so that a restart repeats little. `rstar2 filter` does the same for any
model and file, without a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import FilterStage
from rstar2_train.evaluation.difficulty import SEED_NAME, count_solved, kept_problems, problems_to_jsonl
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.validation import load_problems, needs_validation, run_validation
from rstar2_train.rewards.verdict import EXCLUDED
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.files import write_atomically

SLICE_ROLLOUTS = 512
"""Minimum number of rollouts in one slice; a slice holds whole problems."""
_COLUMNS = ("prompt_id", "prompt_ids", "gold", "sample", "stop", "verdict")
"""The columns that identify a stored sample and its result."""


class FilterSlices:
    """The finished samples of the stage, written in slices: files of whole problems, in the order in which they finish.

    Use as a context manager. On exit, also after an error, all finished samples are written, including those of
    unfinished problems.
    """

    def __init__(
        self,
        folder: Path,
        *,
        check_write: Callable[[], None],
        on_slice: Callable[[], None],
        slice_rollouts: int = SLICE_ROLLOUTS,
    ) -> None:
        """`check_write`: called before each write, raises if it is not allowed; `on_slice`: called after each slice."""
        self._folder = folder
        self._check_write = check_write
        self._on_slice = on_slice
        self._slice_rollouts = slice_rollouts
        self._samples = 0
        self._unfinished: dict[str, list[Trajectory]] = {}
        """Finished samples of problems with pending samples, by problem id."""
        self._next_slice: list[Trajectory] = []
        self._lost: list[Trajectory] = []
        self.written = 0
        """Samples in the files, without the lost ones of earlier attempts."""
        self.finished: Counter[str] = Counter()
        """Finished samples per problem, lost ones included."""
        self.solved: Counter[str] = Counter()
        """Correct samples per problem."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next_slice += [trajectory for samples in self._unfinished.values() for trajectory in samples]
        if kind is None:
            self._next_slice += self._lost
        if self._next_slice:
            self._write()

    def load(self, request: SampleRequest) -> dict[SampleKey, SampleResult]:
        """Return the samples of the request that earlier attempts wrote.

        Skips lost samples and samples of another prompt or answer; these are sampled again.
        """
        self._samples = request.samples
        prompts = {problem.id: (list(request.prompts[problem.id]), problem.answer) for problem in request.problems}
        results = {}
        for _, file in trajectory_store.step_files(self._folder):
            for row in trajectory_store.stream(file, _COLUMNS):
                prompt_id, sample = row["prompt_id"], row["sample"]
                lost = row["stop"] == "infrastructure" or row["verdict"] in EXCLUDED
                matches = prompts.get(prompt_id) == (row["prompt_ids"], row["gold"])
                if matches and sample < request.samples and not lost:
                    results[prompt_id, sample] = SampleResult(prompt_id, sample, row["verdict"])
        for result in results.values():
            self._count(result)
        self.written = len(results)
        return results

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Take a finished sample, and write the slice if it is full. Raises OSError when the disk is full."""
        result = SampleResult.from_trajectory(trajectory)
        self._count(result)
        samples = self._unfinished.setdefault(result.prompt_id, [])
        (self._lost if result.failed else samples).append(trajectory)
        if self.finished[result.prompt_id] == self._samples:
            self._next_slice += self._unfinished.pop(result.prompt_id)
        if len(self._next_slice) >= self._slice_rollouts:
            self._write()
            self._on_slice()
        return result

    def _count(self, result: SampleResult) -> None:
        self.finished[result.prompt_id] += 1
        self.solved[result.prompt_id] += result.correct

    def _write(self) -> None:
        self._check_write()
        last = max((number for number, _ in trajectory_store.step_files(self._folder)), default=0)
        trajectory_store.write(trajectory_store.step_path(self._folder, last + 1), self._next_slice)
        self.written += len(self._next_slice)
        self._next_slice = []


async def run(ctx: StageContext, sessions: Sessions = SESSIONS, *, slice_rollouts: int = SLICE_ROLLOUTS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.stage.filter
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    problems = load_problems(settings.data)
    total = -(-len(problems) * settings.samples // slice_rollouts)
    ctx.report(total_steps=total)
    async with sessions.rollouts(ctx, sessions.chat_format(ctx, source.model)) as rollouts:
        await rollouts.push_folder(source.model, source.version)
        if source.stage is not None and needs_validation(ctx, source.stage):
            await run_validation(ctx, rollouts, source.stage, step=None)
        ctx.report(phase="Filtering")

        def report_slice() -> None:
            step = slices.written // slice_rollouts
            if step < total:  # the last step is reported after all samples are written
                _report(ctx, settings, slices, step)

        with FilterSlices(
            ctx.folder.trajectories,
            check_write=ctx.check_current,
            on_slice=report_slice,
            slice_rollouts=slice_rollouts,
        ) as slices:
            results = await rollouts.measure(
                problems,
                samples=settings.samples,
                sampling=settings.sampling,
                seed=(ctx.seed, SEED_NAME),
                store=slices,
            )
        _report(ctx, settings, slices, total)
    kept = kept_problems(problems, count_solved(problems, results, drop_solved=settings.drop_solved))
    if not kept:
        message = f"the policy solves all {len(problems)} problems: use harder problems, or remove the later stages"
        raise StageFailed("NothingToTrain", message, retryable=False)
    write_atomically(ctx.folder.kept_file, problems_to_jsonl(kept))
    return ctx.outcome("completed", "Completed", f"kept {len(kept)} of {len(problems)} problems")


def _report(ctx: StageContext, settings: FilterStage, slices: FilterSlices, step: int) -> None:
    """Report and track how many of the problems with all samples finished are kept."""
    seen = [prompt_id for prompt_id, count in slices.finished.items() if count == settings.samples]
    kept = sum(slices.solved[prompt_id] < settings.drop_solved for prompt_id in seen)
    figures = {"kept": float(kept), "seen": float(len(seen)), "kept_ratio": kept / max(1, len(seen))}
    ctx.report(phase="Filtering", step=step, metrics=figures)
    ctx.tracker.log_metrics(
        ctx.stage.name, step=step, values={f"filter/{name}": value for name, value in figures.items()}
    )
