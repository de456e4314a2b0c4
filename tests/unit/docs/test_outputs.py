"""Figures, outputs, sources and the recorded demo, as README and pages show them, are those of the project."""

from __future__ import annotations

import re

import pytest
import yaml

from rstar2_train.inference.turn_wire import PART_TOKENS
from scripts.docs import demo_picture, outputs, reward_curve
from scripts.docs.repository import ROOT
from tests.support.page_blocks import blocks

README = (ROOT / "README.md").read_text("utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text("utf-8")
RECORD = demo_picture.RECORD.read_text("utf-8")
EXAMPLE = ROOT / "examples" / "environment"


def test_demo_picture_is_that_of_the_record() -> None:
    """`python -m scripts.docs.demo_picture` draws it again."""
    assert demo_picture.PICTURE.read_text("utf-8") == demo_picture.draw(RECORD)


def test_reward_curve_is_that_of_the_recorded_runs() -> None:
    """`python -m scripts.docs.reward_curve` draws it again; the page has the first and last rewards."""
    curves = reward_curve.rewards()
    assert reward_curve.PICTURE.read_text("utf-8") == reward_curve.draw(curves)
    last = sorted(curve[-1] for curve in curves)
    page = (ROOT / "docs" / "environments.md").read_text("utf-8")
    assert f"in three seeds: from about 0.35 to {last[0]:.2f} to {last[2]:.2f}]" in page
    assert all(abs(curve[0] - 0.35) < 0.025 for curve in curves)


def test_demo_record_is_of_the_present_example() -> None:
    """The steps of the stages have not changed since; `make docs-record` records another run."""
    stages = yaml.safe_load((ROOT / "examples" / "tiny.yaml").read_text("utf-8"))["spec"]["stages"]
    steps = {stage["name"]: stage["grpo"]["steps"] for stage in stages if stage["type"] == "GRPO"}
    assert steps == {name: int(count) for name, count in re.findall(r"(rl-\d): completed, (\d+) steps", RECORD)}


def test_readme_and_results_have_the_figures_of_the_record() -> None:
    """pass@1 of each stage, and the time."""
    figures = re.findall(r"→ (0\.\d{3}) (±0\.\d{3})", RECORD)
    assert len(figures) == 5
    assert "| " + " | ".join(value for value, _ in figures) + " |" in README
    assert "| " + " | ".join(f"{value} {error}" for value, error in figures) + " |" in RESULTS
    (time,) = re.findall(r"tiny: seed 0, (.*)", RECORD)
    assert f"took {time}" in README
    assert f"took {time}" in RESULTS


def test_readme_is_at_most_100_lines() -> None:
    """Picture, command and outcome come before the first heading."""
    first = README.partition("\n## ")[0]
    assert len(README.splitlines()) <= 100
    assert "demo.svg" in first and "make demo" in first and "pass@1" in first


@pytest.mark.parametrize("name", outputs.PAGES)
def test_page_has_the_outputs_of_its_commands(name: str) -> None:
    """`python -m scripts.docs.outputs` writes them again."""
    page = (ROOT / "docs" / name).read_text("utf-8")
    assert outputs.refreshed(page) == page
    assert page.count("<!-- output of: ") == outputs.PAGES[name]


def test_pages_have_the_number_of_resampled_tokens() -> None:
    """After the loss of an engine at most one part of a turn is sampled again."""
    for name in ("algorithm", "kubernetes", "scheduling"):
        assert f"{PART_TOKENS:,} tokens" in (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def test_environments_page_has_the_files_of_the_example() -> None:
    """Source, manifest and script are shown as they are."""
    page = (ROOT / "docs" / "environments.md").read_text("utf-8")
    assert blocks(page, "python") == [(EXAMPLE / "environment.py").read_text("utf-8")]
    assert blocks(page, "yaml") == [(EXAMPLE / "job.yaml").read_text("utf-8")]
    assert (EXAMPLE / "script.txt").read_text("utf-8") in blocks(page)
