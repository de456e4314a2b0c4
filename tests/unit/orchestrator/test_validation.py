"""The progress report during and after the evaluation of a stage's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleRequest
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.rollout_session import SampleSink
from rstar2_train.orchestrator.validation import SO_FAR, EvaluationRun, run_evaluation
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.tracker import journal_file
from tests.support.stage_attempt import NewAttempt
from tests.support.token_arrays import token_array

PROBLEMS = [Problem(id=str(number), problem=f"{number}+1", answer=f"{number + 1}") for number in range(4)]


class FakeRollouts:
    """Replaces RolloutSession: half of the problems are solved."""

    def __init__(self, ctx: StageContext) -> None:
        self.ctx = ctx
        self.reported: list[dict[str, float]] = []

    async def measure(
        self, problems: list[Problem], *, samples: int, cache: SampleCache, on_sample: SampleSink, **_: Any
    ) -> list[SampleResult]:
        cache.load(SampleRequest(problems=problems, prompts={p.id: token_array([65]) for p in problems}, samples=1))
        results = []
        for problem in problems:
            verdict = "correct" if int(problem.id) % 2 else "wrong"
            trajectory = Trajectory(problem.id, 0, token_array([65]), gold=problem.answer, verdict=verdict)
            results.append(cache.add(trajectory))
            on_sample(results[-1], saved=False)
            self.reported.append(dict(self.ctx.progress.metrics))
        return results


def measured(ctx: StageContext, model: Path) -> EvaluationRun:
    """Return the validation of a model after three steps."""
    model.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    return EvaluationRun(stage=ctx.stage, model=model, problems=PROBLEMS, samples=1, sampling=Sampling(), step=3)


async def test_validation_keeps_the_figures_of_the_last_step(new_attempt: NewAttempt, tmp_path: Path) -> None:
    """The reward of a stage stays in its report, next to pass@1; the share so far ends with the evaluation."""
    ctx = new_attempt()
    ctx.report(metrics={"reward": 0.25, "tool_error_ratio": 0.1})
    rollouts = FakeRollouts(ctx)
    await run_evaluation(ctx, rollouts, measured(ctx, tmp_path / "base"))  # type: ignore[arg-type]
    assert rollouts.reported[-1] == {"reward": 0.25, "tool_error_ratio": 0.1, SO_FAR: 0.5}
    assert ctx.progress.metrics == {"reward": 0.25, "tool_error_ratio": 0.1, "pass_at_1": pytest.approx(0.5)}


async def test_validation_is_reported_before_its_file(new_attempt: NewAttempt, tmp_path: Path) -> None:
    """No attempt repeats a validation whose file exists: its metrics are in the journal first."""
    ctx = new_attempt()
    ctx.folder.evaluation_file.mkdir(parents=True)  # the last file cannot be written
    with pytest.raises(OSError):
        await run_evaluation(ctx, FakeRollouts(ctx), measured(ctx, tmp_path / "base"))  # type: ignore[arg-type]
    events = map(json.loads, journal_file(ctx.state.root).read_text().splitlines())
    points = [event for event in events if "evaluation/pass_at_1" in event.get("values", {})]
    assert [(point["step"], point["values"]["evaluation/pass_at_1"]) for point in points] == [(3, 0.5)]
