"""The figures of BFCL's leaderboard: accuracy per category, and its means for calls in one turn. Pure.

The means are those of bfcl-eval's `generate_leaderboard_csv`: the
non-live mean weights its four kinds equally, and the live mean weights its categories by their number of problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rstar2_train.benchmarks.bfcl.conversion import KINDS
from rstar2_train.evaluation.benchmark_figures import BenchmarkFigures
from rstar2_train.evaluation.figure_table import FigureRow, FigureTable
from rstar2_train.evaluation.record_model import RecordModel
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import SliceMetrics, scores_by

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
NON_LIVE = ("multiple", "parallel", "parallel_multiple")
"""Categories of the non-live mean, next to the mean of `SIMPLE`."""
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
IRRELEVANCE = ("irrelevance", "live_irrelevance")


class LeaderboardMetrics(RecordModel):
    """Accuracy on BFCL, with the means of its leaderboard. A mean is null if one of its categories is missing."""

    categories: dict[str, SliceMetrics]
    """Category -> metrics."""
    simple: float | None
    """Mean of simple_python, simple_java and simple_javascript."""
    non_live: float | None
    """Mean of simple, multiple, parallel and parallel_multiple."""
    live: float | None
    """Mean of the live categories with calls, weighted by their number of problems."""
    irrelevance: float | None
    """Mean of irrelevance and live_irrelevance."""


class BFCLFigures:
    """The plug-in."""

    field = "bfcl"
    record: type[RecordModel] = LeaderboardMetrics

    def metrics(self, samples: Sequence[SampleResult]) -> LeaderboardMetrics | None:
        """Return the figures of the problems of BFCL; None without such problems."""
        return leaderboard_metrics(scores_by([sample for sample in samples if is_bfcl(sample)], lambda row: row.slice))

    def tracked(self, metrics: LeaderboardMetrics) -> dict[str, float | None]:
        """Return the means."""
        return {f"bfcl_{name}": getattr(metrics, name) for name in ("simple", "non_live", "live", "irrelevance")}

    def tables(self, metrics: LeaderboardMetrics, benchmarks: Mapping[str, LeaderboardMetrics]) -> list[FigureTable]:
        """Return the table of the leaderboard."""
        note = (
            "Calls in one turn, as on the benchmark's leaderboard. The mean simple weights its languages equally, "
            "non-live its four kinds, and live its problems. A mean without one of its categories is empty."
        )
        return [FigureTable("BFCL", note, ("category", "problems", "accuracy"), _rows(metrics))]


def is_bfcl(sample: SampleResult) -> bool:
    """Return whether `rstar2 data prepare bfcl=...` wrote the problem of a sample: its id has its category."""
    return sample.slice in KINDS and f"/bfcl-{sample.slice}_" in f"/{sample.prompt_id}"


def leaderboard_metrics(categories: Mapping[str, SliceMetrics]) -> LeaderboardMetrics | None:
    """Return the figures of the categories; None without categories. A mean without one of its categories is None."""
    if not categories:
        return None
    simple = _mean(categories, SIMPLE)
    kinds = _mean(categories, NON_LIVE)
    live = [categories[name] for name in LIVE if name in categories]
    problems = sum(category.problems for category in live)
    return LeaderboardMetrics(
        categories={name: categories[name] for name in KINDS if name in categories},
        simple=simple,
        non_live=None if simple is None or kinds is None else (simple + len(NON_LIVE) * kinds) / (1 + len(NON_LIVE)),
        live=sum(row.pass_at_1 * row.problems for row in live) / problems if len(live) == len(LIVE) else None,
        irrelevance=_mean(categories, IRRELEVANCE),
    )


def _rows(metrics: LeaderboardMetrics) -> list[FigureRow]:
    """Return the rows of the table, each mean before its categories. A group without problems is omitted."""
    groups = (
        ("non-live", metrics.non_live, (*SIMPLE, *NON_LIVE)),
        ("simple", metrics.simple, SIMPLE),
        ("", None, SIMPLE),
        ("", None, NON_LIVE),
        ("live", metrics.live, LIVE),
        ("", None, LIVE),
        ("irrelevance, both", metrics.irrelevance, IRRELEVANCE),
        ("", None, (*IRRELEVANCE, "live_relevance")),
    )
    rows: list[FigureRow] = []
    for mean, value, names in groups:
        present = {name: metrics.categories[name] for name in names if name in metrics.categories}
        if mean and present:
            problems = sum(category.problems for category in present.values())
            rows.append(FigureRow(f"{mean} (mean)", (problems, value), is_mean=True))
        elif not mean:
            rows += [FigureRow(name, (benchmark.problems, benchmark.pass_at_1)) for name, benchmark in present.items()]
    return rows


def _mean(categories: Mapping[str, SliceMetrics], names: Sequence[str]) -> float | None:
    """Return the mean with equal weights; None if a category is missing."""
    return fmean(categories[name].pass_at_1 for name in names) if all(name in categories for name in names) else None


PLUGIN: BenchmarkFigures = BFCLFigures()
