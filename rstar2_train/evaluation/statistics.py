"""Computes the figures of an evaluation: pass@1 with standard error, pass@k, tool errors and lengths, also per slice.

Lost samples are counted and excluded, never scored 0. `benchmark_figures.py` adds those of benchmarks. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar2_train.evaluation.benchmark_figures import figure_plugins
from rstar2_train.evaluation.records import Evaluation, Figures
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import pass_at_1, pass_at_powers, problem_set, scores_by, tool_error_ratio
from rstar2_train.utils.numbers import mean


def measure(rows: Sequence[SampleResult]) -> Figures:
    """Return all figures of the samples. `rows`: every sample of every problem, with the lost ones."""
    valid = [row for row in rows if not row.failed]
    correct = [row for row in valid if row.correct]
    overall = pass_at_1(valid)
    hard = pass_at_1([row for row in valid if row.hard])
    return Figures(
        problems=len({row.prompt_id for row in rows}),
        samples=len(valid),
        excluded=len(rows) - len(valid),
        undecided=sum(row.verdict == "undecided" for row in rows),
        problem_set=problem_set(rows),
        pass_at_1=overall.value,
        pass_at_1_se=overall.error,
        confidence=overall.confidence,
        pass_at_k=pass_at_powers(valid),
        hard_pass_at_1=hard.value,
        hard_pass_at_1_se=hard.error,
        tool_error_ratio=tool_error_ratio(valid),
        tool_error_ratio_correct=tool_error_ratio(correct),
        calls_per_sample=mean([row.calls for row in valid]),
        turns=mean([row.turns for row in valid]),
        mean_tokens=mean([row.response_tokens for row in valid]),
        truncated=mean([row.truncated for row in valid]),
        no_answer=mean([row.verdict == "no_answer" for row in valid]),
        slices=scores_by(valid, lambda row: row.slice),
        **{plugin.field: plugin.metrics(valid) for plugin in figure_plugins()},
    )


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the metrics for tracking: `evaluation/<figure>`, and pass@1 as `evaluation_slices/<name>` and
    `evaluation_benchmarks/<name>`.
    """
    values = {"seconds": evaluation.seconds, **figure_metrics(evaluation)}
    metrics: dict[str, float | None] = {f"evaluation/{name}": value for name, value in values.items()}
    metrics |= {f"evaluation_slices/{name}": part.pass_at_1 for name, part in evaluation.slices.items()}
    metrics |= {f"evaluation_benchmarks/{name}": part.pass_at_1 for name, part in evaluation.benchmarks.items()}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def figure_metrics(figures: Figures) -> dict[str, float]:
    """Return the figures for tracking, by name; unknown ones are omitted."""
    names = (
        "pass_at_1", "pass_at_1_se", "hard_pass_at_1", "hard_pass_at_1_se", "tool_error_ratio",
        "tool_error_ratio_correct", "calls_per_sample", "turns", "mean_tokens", "truncated", "no_answer", "excluded",
        "undecided",
    )  # fmt: skip
    values: dict[str, float | None] = {name: getattr(figures, name) for name in names}
    values |= {f"pass_at_{k}": value for k, value in figures.pass_at_k.items()}
    for plugin in figure_plugins():
        if (metrics := getattr(figures, plugin.field)) is not None:
            values |= plugin.tracked(metrics)
    return {name: float(value) for name, value in values.items() if value is not None}
