"""The Filter stage: samples every problem a few times and keeps those the policy does not always solve.

Paper §4.3: before the last stage, 8 rollouts of each problem; problems solved 8 times of 8 are dropped. Needs engines
and judge, no trainer. All problems are asked in one stream, so that no engine waits for the slowest trajectory of a
part; what has ended is written in slices, so that a restart repeats little. `rstar2 filter` does the same by itself,
for any model and file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import FilterStage
from rstar2_train.evaluation.difficulty import SEED_NAME, count_solved, kept_problems, problems_text
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.sessions import load_chat_format
from rstar2_train.orchestrator.validation import load_problems, measure_validation, wants_validation
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.files import write_atomically

SLICE_ROLLOUTS = 512
"""Rollouts between two saves; at least, since a file holds whole problems."""
_COLUMNS = ("prompt_id", "prompt_ids", "gold", "sample", "stop", "verdict")
"""What tells which sample a stored trajectory is, and how it ended."""


class FilterSlices:
    """The samples of the stage that have ended, in files of so many: whole problems, in the order in which they end.

    Use as a context manager: whatever ends the stage, but for a death of the process, all that ended is written, those
    of problems that are not whole too.
    """

    def __init__(self, folder: Path, *, may_write: Callable[[], None], on_slice: Callable[[], None]) -> None:
        """`may_write`: called before a write, to raise when it must not be; `on_slice`: after each full slice."""
        self._folder = folder
        self._may_write = may_write
        self._on_slice = on_slice
        self._samples = 0
        self._parts: dict[str, list[Trajectory]] = {}
        """Problems of which some samples have ended."""
        self._open: list[Trajectory] = []
        """Those that the next file holds."""
        self._lost: list[Trajectory] = []
        self.written = 0
        """Samples in the files, but for lost ones of earlier attempts."""
        self.ended: Counter[str] = Counter()
        """Samples that have ended by problem, lost ones too."""
        self.solved: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open += [trajectory for part in self._parts.values() for trajectory in part]
        if kind is None:
            self._open += self._lost
        if self._open:
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
                name, sample = row["prompt_id"], row["sample"]
                lost = row["stop"] == "infrastructure" or row["verdict"] == "internal"
                if prompts.get(name) == (row["prompt_ids"], row["gold"]) and sample < request.samples and not lost:
                    results[name, sample] = SampleResult(name, sample, row["verdict"])
        for result in results.values():
            self._count(result)
        self.written = len(results)
        return results

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Take a sample that has ended; writes a slice that is full. Raises OSError when the disk is."""
        scored = SampleResult.of(trajectory)
        self._count(scored)
        part = self._parts.setdefault(scored.prompt_id, [])
        (self._lost if scored.failed else part).append(trajectory)
        if self.ended[scored.prompt_id] == self._samples:
            self._open += self._parts.pop(scored.prompt_id)
        if len(self._open) >= SLICE_ROLLOUTS:
            self._write()
            self._on_slice()
        return scored

    def _count(self, scored: SampleResult) -> None:
        self.ended[scored.prompt_id] += 1
        self.solved[scored.prompt_id] += scored.correct

    def _write(self) -> None:
        self._may_write()
        last = max((number for number, _ in trajectory_store.step_files(self._folder)), default=0)
        trajectory_store.write(trajectory_store.step_path(self._folder, last + 1), self._open)
        self.written += len(self._open)
        self._open = []


async def run(ctx: StageContext) -> Outcome:
    """Run the stage to its end. Raises Suspend or StageFailed."""
    settings = ctx.stage.filter
    assert settings is not None
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    problems = load_problems(settings.data)
    total = -(-len(problems) * settings.samples // SLICE_ROLLOUTS)
    ctx.report(total_steps=total)
    async with RolloutSession(ctx, load_chat_format(ctx, source.model)) as rollouts:
        await rollouts.push_folder(source.model, source.version)
        if source.stage is not None and wants_validation(ctx, source.stage):
            await measure_validation(ctx, rollouts, source.stage, step=None)
        ctx.report(phase="Filtering")

        def tell() -> None:
            step = slices.written // SLICE_ROLLOUTS
            if step < total:  # the last one is told when all is done
                _tell(ctx, settings, slices, step)

        with FilterSlices(ctx.folder.trajectories, may_write=ctx.check_current, on_slice=tell) as slices:
            rows = await rollouts.measure(
                problems,
                samples=settings.samples,
                sampling=settings.sampling,
                seed=(ctx.seed, SEED_NAME),
                store=slices,
            )
        _tell(ctx, settings, slices, total)
    kept = kept_problems(problems, count_solved(problems, rows, drop_solved=settings.drop_solved))
    if not kept:
        message = f"the policy solves all {len(problems)} problems; give harder ones, or drop the stages after this one"
        raise StageFailed("NothingToTrain", message, retryable=False)
    write_atomically(ctx.folder.kept_file, problems_text(kept))
    return ctx.outcome("completed", "Completed", f"kept {len(kept)} of {len(problems)} problems")


def _tell(ctx: StageContext, settings: FilterStage, slices: FilterSlices, step: int) -> None:
    """Show and track how many of the problems all of whose samples have ended are kept."""
    seen = [name for name, ended in slices.ended.items() if ended == settings.samples]
    kept = sum(slices.solved[name] < settings.drop_solved for name in seen)
    share = {"kept": float(kept), "seen": float(len(seen)), "kept_ratio": kept / max(1, len(seen))}
    ctx.report(phase="Filtering", step=step, metrics=share)
    ctx.tracker.metrics(ctx.stage.name, step=step, values={f"filter/{name}": value for name, value in share.items()})
