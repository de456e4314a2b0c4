"""Figures of each step and each evaluation of a job, and the plots of them over its stages.

The figures are those that the driver tells MLflow (`track.metrics`), computed anew from the stored trajectories.
`slim` and `positions` are pure; `plot` writes SVG files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.analysis.sources import TrajectoryFile
from rstar2_train.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of one file of trajectories."""

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
        "share of rollouts that are right",
        (("reward/mean", "all rollouts"), ("reward/mean_kept", "kept for the update")),
        "Reward is 1 for a right answer, else 0. What is kept for the update leaves out groups without variance.",
    ),
    Plot(
        "length.svg",
        "Response length",
        "tokens",
        (("response/length_mean", "all rollouts"), ("response/length_mean_correct", "right ones")),
        "Tokens after the prompt, tool output included. The limit may change from stage to stage.",
    ),
    Plot(
        "tool-errors.svg",
        "Tool errors",
        "failed calls / calls",
        (("tools/error_ratio", "all rollouts"), ("tools/error_ratio_correct", "right ones")),
        "The errors of right rollouts are what Resample-on-Correct lowers (paper, Fig. 4).",
    ),
    Plot(
        "truncation.svg",
        "Cut off by a limit",
        "share of rollouts",
        (("response/truncation_ratio", "all rollouts"),),
        "Rollouts that a limit on tokens, turns or tool output stopped before they answered.",
    ),
)
_COLOURS = ("#1f5fbf", "#d9730d")


def slim(trajectory: Trajectory) -> Trajectory:
    """A trajectory for `track.metrics`, which counts tokens and does not look at them: without ids and log-probs."""
    segments = [
        dataclasses.replace(segment, token_ids=[0] * len(segment.token_ids), logprobs=[])
        for segment in trajectory.segments
    ]
    return dataclasses.replace(trajectory, prompt_ids=[], segments=segments, text="")


def positions(sources: Sequence[TrajectoryFile]) -> tuple[dict[TrajectoryFile, float], dict[str, tuple[float, float]]]:
    """Where each file stands on an axis of training steps, stage after stage; and where each stage begins and ends.

    A step stands at the number of training steps done before it and itself; an evaluation where its stage ends. Filter
    rollouts train nothing and stand nowhere.
    """
    places: dict[TrajectoryFile, float] = {}
    stages: dict[str, tuple[float, float]] = {}
    done = 0.0
    for source in sources:
        begin, end = stages.get(source.stage, (done, done))
        if source.set == "training":
            places[source] = begin + source.step
            end = max(end, places[source])
        elif source.set == "evaluation":
            places[source] = end
        stages[source.stage] = (begin, end)
        done = end
    return places, stages


def plot(points: Sequence[Point], folder: Path) -> list[Plot]:
    """Draw the plots that have anything to show into `folder`; returns them. The same points give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    places, stages = positions([point.source for point in points])
    settings = {"svg.hashsalt": "rstar2", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    drawn = []
    with matplotlib.rc_context(settings):
        for one in PLOTS:
            figure, axes = pyplot.subplots(figsize=(5.6, 3.1), layout="constrained")
            if _draw(axes, one, points, places):
                _stage_bands(axes, stages)
                axes.set(xlabel="training step, over all stages", ylabel=one.unit)
                axes.set_ylim(bottom=0)
                axes.spines[["top", "right"]].set_visible(False)
                figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
                figure.savefig(folder / one.file, metadata={"Date": None})
                drawn.append(one)
            pyplot.close(figure)
    return drawn


def _draw(axes: Any, one: Plot, points: Sequence[Point], places: dict[TrajectoryFile, float]) -> bool:
    """The curves of a plot; whether there was any value."""
    any_value = False
    for (metric, label), colour in zip(one.curves, _COLOURS, strict=False):
        for kind, style in (
            ("training", {"marker": ".", "label": label}),
            ("evaluation", {"label": f"{label}: held out"}),
        ):
            seen = [p for p in points if p.source.set == kind and p.source in places and metric in p.metrics]
            if not seen:
                continue
            any_value = True
            x, y = [places[p.source] for p in seen], [p.metrics[metric] for p in seen]
            if kind == "training":
                axes.plot(x, y, color=colour, linewidth=1.2, **style)
            else:
                axes.plot(x, y, "D", color=colour, markerfacecolor="white", markersize=5, **style)
    return any_value


def _stage_bands(axes: Any, stages: dict[str, tuple[float, float]]) -> None:
    """Each stage's name above its steps, and a line where the next begins; stages without steps are left out."""
    last = max(end for _, end in stages.values()) or 1  # a stage without steps, by itself
    axes.set_xlim(-0.02 * last, 1.02 * last)
    for name, (begin, end) in stages.items():
        if end > begin:
            axes.axvline(end, color="#cccccc", linewidth=0.8, zorder=0)
            axes.text((begin + end) / 2, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", color="#555555")
