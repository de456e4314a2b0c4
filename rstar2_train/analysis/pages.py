"""The pages of an analysis: the report, the viewer, their plots and `summary.json`. Last in the flow.

What models wrote reaches a page in two ways only: through Jinja with autoescape, or as strings in the viewer's data,
which its script shows as text. Both pages forbid inline scripts and anything from elsewhere (Content-Security-Policy).
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
from rstar2_train.analysis.roc import sentences
from rstar2_train.analysis.tokens import FORKING_WORDS, REGIONS
from rstar2_train.analysis.viewer import NATS, ViewerData
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.grpo_roc.resample import DELTA, Mode

SUMMARY = "summary.json"
FORMAT = 1
"""Version of summary.json."""
HERE = Path(__file__).parent
ASSETS = ("style.css", "viewer.js")
"""With the summary, what marks a folder as an analysis: only such a one is ever replaced."""
STAGE_METRICS = (
    ("reward/mean", "reward", "{:.3f}"),
    ("response/length_mean", "tokens", "{:.0f}"),
    ("tools/calls_per_trajectory", "calls", "{:.2f}"),
    ("tools/error_ratio", "tool errors", "{:.1%}"),
    ("tools/error_ratio_correct", "… in right ones", "{:.1%}"),
    ("response/truncation_ratio", "cut off", "{:.1%}"),
)
"""Columns of the report's table of stages: metric, heading, form."""


def write(
    folder: Path,
    job: AgenticRLJob,
    found: TrajectoryFigures,
    entropy: dict[str, Any] | None,
    data: ViewerData,
) -> dict[str, Any]:
    """Write everything into `folder`; returns what `summary.json` holds. The same trajectories give the same bytes.

    `entropy`: the entropy study and how it was made; None where no model scored.
    """
    modes: dict[str, Mode] = {
        stage.name: job.grpo_settings(stage).resample.mode for stage in job.spec.stages if stage.type == "GRPO"
    }
    summary: dict[str, Any] = {
        "format": FORMAT,
        "job": job.metadata.name,
        "trajectories": sum(point.trajectories for point in found.points),
        "shown": len(data),
        "files": [
            {"stage": p.source.stage, "set": p.source.set, "step": p.source.step, "trajectories": p.trajectories}
            | {"metrics": p.metrics}
            for p in found.points
        ],
        "selection": {
            stage: {reason: tally.summary() for reason, tally in sorted(tallies.items())}
            for stage, tallies in found.reasons.items()
            if tallies
        },
        "surprisal": {stage: study.summary() for stage, study in found.surprisal.items() if study.trajectories},
        "entropy": entropy,
    }
    data.finish(
        {
            "job": job.metadata.name,
            "nats": NATS,
            "delta": DELTA,
            "trajectories": summary["trajectories"],
            "modes": modes,
            "why": {stage.name: sentences(modes.get(stage.name, "Paper")) for stage in job.spec.stages},
        }
    )
    plots = figures.plot(found.points, folder)
    for asset in ASSETS:
        shutil.copyfile(HERE / asset, folder / asset)
    _render(folder, "viewer.html", job=job.metadata.name)
    _render(
        folder,
        "index.html",
        summary=summary,
        plots=plots,
        headings=[heading for _, heading, _ in STAGE_METRICS],
        rows=stage_rows(found.points),
        fates=fate_meanings(summary["selection"], modes),
        kinds=(*REGIONS, "forking", "all"),
        forking_words=FORKING_WORDS,
    )
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def stage_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """The table of stages: a row for each stage's steps, slices or evaluation, with the first and last step's figures.

    A cell is `first → last` of a training; of a filter, whose files are slices of one whole, their mean by trajectory;
    a dash where nothing was measured. Pure.
    """
    rows = []
    for (stage, kind), group in groupby(points, key=lambda point: (point.source.stage, point.source.set)):
        members = list(group)
        cells = []
        for metric, _, form in STAGE_METRICS:
            if kind == "training" and len(members) > 1:
                values = [members[0].metrics.get(metric), members[-1].metrics.get(metric)]
            else:
                values = [_mean(metric, members)]
            cells.append(" → ".join("-" if value is None else form.format(value) for value in values))
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


def _mean(metric: str, points: Sequence[Point]) -> float | None:
    """Mean over those that have it, by trajectory."""
    seen = [(point.metrics[metric], point.trajectories) for point in points if metric in point.metrics]
    return sum(value * weight for value, weight in seen) / sum(weight for _, weight in seen) if seen else None


def fate_meanings(
    selection: Mapping[str, Mapping[str, Mapping[str, float]]], modes: Mapping[str, Mode]
) -> list[tuple[str, str]]:
    """Each fate of the report's table with its meaning, once; twice where stages resample in two modes. Pure."""
    pairs = {
        (reason, sentences(modes[stage]).get(reason, reason))
        for stage, reasons in selection.items()
        for reason in reasons
    }
    return sorted(pairs)


def _render(folder: Path, page: str, **values: Any) -> None:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    (folder / page).write_text(environment.get_template(f"{page}.jinja").render(values), encoding="utf-8")
