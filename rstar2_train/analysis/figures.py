"""The metrics of each trajectory file, and their plots over the stages of a job.

The metrics are those that the orchestrator tracks (`tracking/metrics.py`), recomputed from the stored trajectories.
`draw_plots` writes SVG files; the other functions are pure.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.analysis.sources import TrajectoryFile
from rstar2_train.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Point:
    """The metrics of one trajectory file."""

    source: TrajectoryFile
    trajectories: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: metrics that share an axis."""

    file: str
    title: str
    unit: str
    curves: tuple[tuple[str, str], ...]
    """(metric, label)."""
    caption: str


PLOTS = (
    Plot(
        "reward.svg",
        "Reward",
        "share of correct rollouts",
        (("reward/mean", "all rollouts"), ("reward/mean_kept", "kept for the update")),
        "The reward is 1 for a correct answer, otherwise 0. Groups with equal rewards are not in the update.",
    ),
    Plot(
        "length.svg",
        "Response length",
        "tokens",
        (("response/length_mean", "all rollouts"), ("response/length_mean_correct", "correct rollouts")),
        "Mean tokens after the prompt, with tool output. The token limit may differ between stages.",
    ),
    Plot(
        "tool-errors.svg",
        "Tool errors",
        "failed calls / all calls",
        (("tools/error_ratio", "all rollouts"), ("tools/error_ratio_correct", "correct rollouts")),
        "Resample-on-Correct lowers the ratio in correct rollouts (paper, Fig. 4).",
    ),
    Plot(
        "truncation.svg",
        "Truncation",
        "share of truncated rollouts",
        (("response/truncation_ratio", "all rollouts"),),
        "A limit on tokens, turns or tool output stopped the rollout before the answer.",
    ),
)
_COLOURS = ("#1f5fbf", "#d9730d")


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory without token ids and log-probabilities: `tracking.metrics` only counts tokens."""
    segments = [
        dataclasses.replace(segment, token_ids=array("i", [0]) * len(segment.token_ids), logprobs=array("f"))
        for segment in trajectory.segments
    ]
    return dataclasses.replace(trajectory, prompt_ids=array("i"), segments=segments, text="")


def axis_positions(
    sources: Sequence[TrajectoryFile],
) -> tuple[dict[TrajectoryFile, float], dict[str, tuple[float, float]]]:
    """Return the position of each file on an axis of training steps over all stages, and the range of each stage.

    The position of a step is the number of training steps up to and including it. The position of an evaluation is the
    end of its stage. Filter rollouts have no position, because the stage trains nothing.
    """
    positions: dict[TrajectoryFile, float] = {}
    stages: dict[str, tuple[float, float]] = {}
    done = 0.0
    for source in sources:
        start, end = stages.get(source.stage, (done, done))
        if source.set == "training":
            positions[source] = start + source.step
            end = max(end, positions[source])
        elif source.set == "evaluation":
            positions[source] = end
        stages[source.stage] = (start, end)
        done = end
    return positions, stages


def draw_plots(points: Sequence[Point], folder: Path) -> list[Plot]:
    """Draw all plots with data into `folder` and return them. The same points give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    positions, stages = axis_positions([point.source for point in points])
    settings = {"svg.hashsalt": "rstar2", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    drawn = []
    with matplotlib.rc_context(settings):
        for plot in PLOTS:
            figure, axes = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
            if _draw(axes, plot, points, positions):
                _draw_stages(axes, stages)
                axes.set(xlabel="training step, over all stages", ylabel=plot.unit)
                axes.set_ylim(bottom=0)
                axes.spines[["top", "right"]].set_visible(False)
                figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
                figure.savefig(folder / plot.file, metadata={"Date": None})
                drawn.append(plot)
            pyplot.close(figure)
    return drawn


def _draw(axes: Any, plot: Plot, points: Sequence[Point], positions: dict[TrajectoryFile, float]) -> bool:
    """Draw the curves of a plot. Return whether there is any value."""
    has_value = False
    for (metric, label), colour in zip(plot.curves, _COLOURS, strict=False):
        for kind, style in (
            ("training", {"marker": ".", "label": label}),
            ("evaluation", {"label": f"{label}, held out"}),
        ):
            drawn = [p for p in points if p.source.set == kind and p.source in positions and metric in p.metrics]
            if not drawn:
                continue
            has_value = True
            x, y = [positions[p.source] for p in drawn], [p.metrics[metric] for p in drawn]
            if kind == "training":
                axes.plot(x, y, color=colour, linewidth=1.2, **style)
            else:
                axes.plot(x, y, "D", color=colour, markerfacecolor="white", markersize=5, **style)
    return has_value


def _draw_stages(axes: Any, stages: dict[str, tuple[float, float]]) -> None:
    """Draw the name of each stage with steps above its range, and a line at its end."""
    last = max(end for _, end in stages.values()) or 1  # 1 if no stage has steps
    axes.set_xlim(-0.02 * last, 1.02 * last)
    for name, (start, end) in stages.items():
        if end > start:
            axes.axvline(end, color="#cccccc", linewidth=0.8, zorder=0)
            axes.text((start + end) / 2, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", color="#555555")
