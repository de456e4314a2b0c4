"""The tables of a report: every value is readable at any width, with many slices and long names."""

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from rstar2_train.cli.report_tables import ReportTables, slice_table
from rstar2_train.evaluation.records import JobReport, SliceMetrics, StageReport

FAMILIES = [f"family-{number:02d}-of-a-data-set-with-a-long-name" for number in range(16)]
STAGES = ["sft", "rl-1", "rl-2-with-longer-responses-and-hard-problems", "rl-3", "rl-4", "eval"]


def stage(number: int, *, families: list[str]) -> StageReport:
    """Return a measured stage; each score in the report is different."""
    return StageReport(
        name=STAGES[number],
        type="Evaluate" if STAGES[number] == "eval" else "GRPO",
        steps=40,
        attempts=1,
        pass_at_1=0.1 * number,
        pass_at_1_se=0.02,
        pass_at_1_before=0.1 * (number - 1) if number else None,
        hard_pass_at_1=None,
        tool_error_ratio_correct=0.125,
        mean_tokens=1042.25,
        truncated=0.05,
        temperature=1.0,
        outcome="failed" if number == 4 else "completed",
        reason="EngineUnavailable" if number == 4 else "StepsReached",
        slices={
            name: SliceMetrics(problems=5, samples=20, pass_at_1=score(number, at), pass_at_1_se=0.01)
            for at, name in enumerate(families)
        },
    )


def score(number: int, at: int) -> float:
    return (number * 16 + at) / 100


def report(*, families: list[str] = FAMILIES, stages: int = len(STAGES)) -> JobReport:
    return JobReport(job="tiny", seconds=3700, seed=7, stages=[stage(at, families=families) for at in range(stages)])


def printed(table: RenderableType, width: int) -> str:
    console = Console(width=width, record=True, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_report_tables_show_each_score_at_any_width(width: int) -> None:
    """No line is longer than the terminal, and no cell is cut. Columns that are omitted are named."""
    text = printed(ReportTables(report()), width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    stages, slices = text.split("pass@1 by slice")
    for number in range(len(STAGES)):
        after = f"{0.1 * number:.3f} ±0.020"
        assert after in stages, after
        for at in range(16):
            assert f"{score(number, at):.3f} ±0.010" in slices
    assert "rl-2-with-long" in slices and "tiny: seed 7, 1 h 01 min" in stages
    assert ("Not shown at this width" in stages) == (width < 120)


@pytest.mark.parametrize("width", [30, 60, 200])
def test_report_tables_print_names_of_any_text(width: int) -> None:
    """A name from a data file is neither markup nor a command of the terminal, and wide characters fold too."""
    names = ["[red]x[/red]", "[/]", "\x1b[31mred", "\x9b2J\u202e\u2028", "", "漢字" * 30, "😀" * 40, "x" * 300]
    names += FAMILIES[:8]
    text = printed(ReportTables(report(families=names)), width)
    assert max(map(cell_len, text.splitlines())) <= width and "…" not in text
    assert not {"\x1b", "\x9b", "\u202e", "\u2028"} & set(text) and "[red]x[/red]" in text and "␛[31mred" in text
    for number in range(len(STAGES)):
        assert all(f"{score(number, at):.3f} ±0.010" in text for at in range(16))


def test_wide_report_has_each_column() -> None:
    """A wide terminal shows everything in one line per stage."""
    text = printed(ReportTables(report()), 200)
    line = next(line for line in text.splitlines() if "rl-3" in line)
    assert " ".join(line.split()) == "rl-3 GRPO 40 1 1 0.200 → 0.300 ±0.020 +0.100 12.5 % 1042.2 5.0 % done"
    assert "failed: EngineUnavailable" in text and FAMILIES[3] in text


def test_report_of_pending_stages_has_dashes() -> None:
    """A stage without a measurement has dashes, and no column in the table of slices."""
    pending = StageReport(
        name="next", type="GRPO", steps=None, attempts=0, pass_at_1=None, hard_pass_at_1=None,
        tool_error_ratio_correct=None, mean_tokens=None, truncated=None,
    )  # fmt: skip
    both = report(families=["L1"], stages=1).model_copy(update={"stages": [stage(0, families=["L1"]), pending]})
    stages, slices = printed(ReportTables(both), 200).split("pass@1 by slice")
    assert "not started" in stages and "- → 0.000 ±0.020" in stages
    assert "next" in stages and "next" not in slices


def test_slice_table_without_slices_is_none() -> None:
    """Without slices there is no table of slices."""
    assert slice_table(report(families=[])) is None


def test_slice_table_has_row_of_hard_problems() -> None:
    """Hard problems are a row below the slices."""
    hard = stage(1, families=["L1"]).model_copy(update={"hard_pass_at_1": 0.25, "hard_pass_at_1_se": 0.03})
    table = slice_table(report().model_copy(update={"stages": [hard]}))
    assert table is not None and "hard" in printed(table, 60) and "0.250 ±0.030" in printed(table, 60)


def test_slice_table_row_of_hard_problems_is_no_slice() -> None:
    """A slice may be called hard too."""
    hard = stage(1, families=["easy", "hard"]).model_copy(update={"hard_pass_at_1": 0.25})
    text = printed(ReportTables(report().model_copy(update={"stages": [hard]})), 60)
    assert "hard 0.170 ±0.010 hard problems 0.250" in " ".join(text.split())
