"""The figures of BFCL's leaderboard, compared with values that were computed by hand."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from rstar2_train.api.stages import Sampling
from rstar2_train.benchmarks.bfcl.conversion import KINDS
from rstar2_train.benchmarks.bfcl.figures import BFCLFigures, leaderboard_metrics
from rstar2_train.cli.evaluation_tables import EvaluationTables
from rstar2_train.evaluation.figure_table import FigureRow
from rstar2_train.evaluation.html_report import render_page
from rstar2_train.evaluation.records import Evaluation
from rstar2_train.evaluation.result import build_evaluation
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.scores import SliceMetrics
from rstar2_train.evaluation.statistics import evaluation_metrics, measure

SAMPLING = Sampling(temperature=0, max_response_tokens=100, max_turns=1)
ACCURACY = {
    "simple_python": (0.9, 400), "simple_java": (0.6, 100), "simple_javascript": (0.3, 50),
    "multiple": (0.8, 200), "parallel": (0.7, 200), "parallel_multiple": (0.5, 200), "irrelevance": (0.75, 240),
    "live_simple": (0.5, 258), "live_multiple": (0.75, 1053), "live_parallel": (0.25, 16),
    "live_parallel_multiple": (1.0, 24), "live_irrelevance": (0.25, 884), "live_relevance": (1.0, 16),
}  # fmt: skip
CATEGORIES = {
    name: SliceMetrics(problems=problems, samples=problems, pass_at_1=accuracy)
    for name, (accuracy, problems) in ACCURACY.items()
}


def row(category: str, number: int, *, correct: bool, id: str = "bfcl-", failed: bool = False) -> SampleResult:
    return SampleResult(
        prompt_id=f"b/{id}{category}_{number}",
        sample=0,
        verdict="correct" if correct else "wrong",
        failed=failed,
        slice=category,
    )


ROWS = [
    row("simple_java", 0, correct=True),
    row("simple_java", 1, correct=False),
    row("simple_java", 2, correct=False, failed=True),
    row("live_irrelevance", 0, correct=True),
    row("multiple", 0, correct=False, id="own-"),
]


def result(rows: list[SampleResult]) -> Evaluation:
    return build_evaluation(
        rows,
        stage="eval",
        benchmarks={each.prompt_id: "b" for each in rows},
        model="m",
        endpoint=None,
        settings={},
        samples=1,
        sampling=SAMPLING,
        seconds=1,
    )


def test_leaderboard_means_equal_manual_computation() -> None:
    """Simple 0.6; non-live (0.6 + 0.8 + 0.7 + 0.5) / 4; live by problems; irrelevance by category."""
    metrics = leaderboard_metrics(CATEGORIES)
    assert metrics is not None and list(metrics.categories) == list(KINDS)
    assert metrics.simple == pytest.approx(0.6)
    assert metrics.non_live == pytest.approx(0.65)
    assert metrics.live == pytest.approx((0.5 * 258 + 0.75 * 1053 + 0.25 * 16 + 24) / 1351)
    assert metrics.irrelevance == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("missing", "empty"),
    [
        ("simple_java", {"simple", "non_live"}),
        ("parallel", {"non_live"}),
        ("live_parallel", {"live"}),
        ("irrelevance", {"irrelevance"}),
        ("live_relevance", set[str]()),
    ],
)
def test_leaderboard_mean_with_missing_category_is_empty(missing: str, empty: set[str]) -> None:
    """Only the means of a missing category are None."""
    metrics = leaderboard_metrics({name: each for name, each in CATEGORIES.items() if name != missing})
    assert metrics is not None
    names = ("simple", "non_live", "live", "irrelevance")
    assert {name for name in names if getattr(metrics, name) is None} == empty


def test_leaderboard_rows_have_each_category_once() -> None:
    """A mean is before its categories; its problems are theirs."""
    metrics = leaderboard_metrics(CATEGORIES)
    assert metrics is not None
    (table,) = BFCLFigures().tables(metrics, {})
    rows = table.rows
    assert [each.name for each in rows if not each.is_mean] == [
        *(name for name, kind in KINDS.items() if "relevance" not in kind),
        *("irrelevance", "live_irrelevance", "live_relevance"),
    ]
    assert [(each.name, each.values[0]) for each in rows if each.is_mean] == [
        ("non-live (mean)", 1150),
        ("simple (mean)", 550),
        ("live (mean)", 1351),
        ("irrelevance, both (mean)", 1124),
    ]
    assert rows[2] == FigureRow("simple_python", (400, 0.9))


def test_measure_counts_only_valid_samples_of_bfcl() -> None:
    """A lost sample and a problem of another source with the name of a category do not count."""
    evaluation = measure(ROWS)
    assert evaluation.bfcl is not None
    counted = {name: (each.problems, each.pass_at_1) for name, each in evaluation.bfcl.categories.items()}
    assert counted == {"simple_java": (2, 0.5), "live_irrelevance": (1, 1.0)}
    assert measure(ROWS[-1:]).bfcl is None


def test_tracked_metrics_have_the_means() -> None:
    """The means of the leaderboard are tracked; a mean that is None is not."""
    rows = [row(name, 0, correct=name != "simple_java") for name in KINDS if name != "live_simple"]
    metrics = evaluation_metrics(result(rows))
    means = {name: value for name, value in metrics.items() if name.startswith("evaluation/bfcl_")}
    assert means == pytest.approx(
        {
            "evaluation/bfcl_simple": 2 / 3,
            "evaluation/bfcl_non_live": (2 / 3 + 3) / 4,
            "evaluation/bfcl_irrelevance": 1.0,
        }
    )


def test_report_has_the_leaderboard() -> None:
    """Terminal and page show categories and means, with a dash for a mean without all categories."""
    console = Console(file=StringIO(), width=120)
    console.print(EvaluationTables(result(ROWS)))
    assert isinstance(console.file, StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["simple_java", "2", "0.500"] in lines and ["simple", "(mean)", "2", "-"] in lines
    page = render_page(result(ROWS))
    assert "<h2>BFCL</h2>" in page and "<b>simple (mean)</b>" in page
    assert "BFCL" not in render_page(result(ROWS[-1:]))
