"""Writes the pages of an analysis: the report, the viewer, the plots and `summary.json`.

The last step of `rstar2 analyse`. Texts of models are untrusted: Jinja escapes them, or they are strings in the
viewer's data, which its script inserts as text. The Content-Security-Policy of both pages forbids inline scripts and
external resources.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rstar2_train.analysis import figures
from rstar2_train.analysis.figures import Point
from rstar2_train.analysis.gather import TrajectoryFigures
from rstar2_train.analysis.roc import reason_texts
from rstar2_train.analysis.tokens import FORKING_WORDS, REGIONS
from rstar2_train.analysis.viewer import UNITS_PER_NAT, ViewerData
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.evaluation.result import format_number
from rstar2_train.grpo_roc.resample import DELTA, Mode
from rstar2_train.utils.html import render_template

SUMMARY = "summary.json"
FORMAT = 1
"""Version of summary.json."""
HERE = Path(__file__).parent
ASSETS = ("style.css", "viewer.js", "trajectory.js")
MARKS = (SUMMARY, "style.css", "viewer.js")
"""Files that identify a folder as an analysis. Only such a folder is ever replaced."""
STAGE_METRICS = (
    ("reward/mean", "reward", "{:.3f}"),
    ("response/length_mean", "tokens", "{:.0f}"),
    ("tools/calls_per_trajectory", "tool calls", "{:.2f}"),
    ("tools/error_ratio", "tool errors", "{:.1%}"),
    ("tools/error_ratio_correct", "… in correct rollouts", "{:.1%}"),
    ("response/truncation_ratio", "truncated", "{:.1%}"),
)
"""Columns of the report's table of stages: metric, heading, format."""


def write_pages(
    folder: Path,
    job: AgenticRLJob,
    collected: TrajectoryFigures,
    entropy: dict[str, Any] | None,
    data: ViewerData,
) -> dict[str, Any]:
    """Write all files into `folder` and return the content of `summary.json`. Same trajectories give the same bytes.

    `entropy`: the entropy study and its settings; None without a scoring model.
    """
    modes = resampling_modes(job)
    summary: dict[str, Any] = {
        "format": FORMAT,
        "job": job.metadata.name,
        "trajectories": sum(point.trajectories for point in collected.points),
        "shown": len(data),
        "files": [
            {"stage": p.source.stage, "set": p.source.set, "step": p.source.step, "trajectories": p.trajectories}
            | {"metrics": p.metrics}
            for p in collected.points
        ],
        "selection": {
            stage: {reason: tally.summary() for reason, tally in sorted(tallies.items())}
            for stage, tallies in collected.reasons.items()
            if tallies
        },
        "surprisal": {stage: study.summary() for stage, study in collected.surprisal.items() if study.trajectories},
        "entropy": entropy,
    }
    data.finish(viewer_constants(job, summary["trajectories"]))
    plots = figures.draw_plots(collected.points, folder)
    for asset in ASSETS:
        shutil.copyfile(HERE / asset, folder / asset)
    (folder / "viewer.html").write_text(
        render_template(HERE / "viewer.html.jinja", job=job.metadata.name, live=False), encoding="utf-8"
    )
    report = render_template(
        HERE / "index.html.jinja",
        summary=summary,
        plots=plots,
        headings=[heading for _, heading, _ in STAGE_METRICS],
        rows=stage_rows(collected.points),
        reasons=reason_meanings(summary["selection"], modes),
        kinds=(*REGIONS, "forking", "all"),
        forking_words=FORKING_WORDS,
        number=format_number,
    )
    (folder / "index.html").write_text(report, encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def resampling_modes(job: AgenticRLJob) -> dict[str, Mode]:
    """Return the resampling mode of each GRPO stage."""
    return {stage.name: job.grpo_settings(stage).resample.mode for stage in job.spec.stages if stage.type == "GRPO"}


def viewer_constants(job: AgenticRLJob, trajectories: int) -> dict[str, Any]:
    """Return the values that all rows of the viewer's table share. `trajectories`: number of all stored ones."""
    modes = resampling_modes(job)
    return {
        "job": job.metadata.name,
        "unitsPerNat": UNITS_PER_NAT,
        "delta": DELTA,
        "trajectories": trajectories,
        "weighted": {name: mode == "Paper" for name, mode in modes.items()},
        "reasons": {stage.name: reason_texts(modes.get(stage.name, "Paper")) for stage in job.spec.stages},
    }


def stage_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the table of stages: one row for the steps, the slices or the evaluation of a stage. Pure.

    A cell of training steps is `first → last`. A cell of a filter is the mean over its slices, weighted by
    trajectories. A dash means that there is no value.
    """
    rows = []
    for (stage, kind), group in groupby(points, key=lambda point: (point.source.stage, point.source.set)):
        members = list(group)
        cells = []
        for metric, _, template in STAGE_METRICS:
            if kind == "training" and len(members) > 1:
                values = [members[0].metrics.get(metric), members[-1].metrics.get(metric)]
            else:
                values = [_weighted_mean(metric, members)]
            cells.append(" → ".join("-" if value is None else template.format(value) for value in values))
        rows.append(
            {
                "stage": stage,
                "set": kind,
                "files": len(members),
                "trajectories": sum(point.trajectories for point in members),
                "cells": cells,
            }
        )
    return rows


def _weighted_mean(metric: str, points: Sequence[Point]) -> float | None:
    """Return the mean of a metric over the points that have it, weighted by trajectories."""
    pairs = [(point.metrics[metric], point.trajectories) for point in points if metric in point.metrics]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs) if pairs else None


def reason_meanings(
    selection: Mapping[str, Mapping[str, Mapping[str, float]]], modes: Mapping[str, Mode]
) -> list[tuple[str, str]]:
    """Return (reason, explanation) of the reasons in the report; two for a reason under two resampling modes. Pure."""
    pairs = {
        (reason, reason_texts(modes[stage]).get(reason, reason))
        for stage, reasons in selection.items()
        for reason in reasons
    }
    return sorted(pairs)
