"""docs/sizing.md has the sizes that the planner computes."""

from __future__ import annotations

import re

from scripts.docs import sizing_page

PAGE = sizing_page.PAGE.read_text("utf-8")


def test_sizing_page_has_the_fewest_gpus_of_the_planner() -> None:
    """For each model and budget; `python -m scripts.docs.sizing_page` writes the table again."""
    rows = re.findall(
        r"^\| (Qwen3-[^,]+), ([\d,]+) \| (\d+: \d+ \+ [^,]+), [^|]+\|[^|]+\| (\d+: [^,]+), ", PAGE, re.MULTILINE
    )
    expected = []
    for model in sizing_page.MODELS:
        for budget in sizing_page.BUDGETS:
            sizes = (sizing_page.smallest(model, budget, hardware) for hardware in sizing_page.HARDWARE)
            expected.append((model, f"{budget:,}", *(sizing_page.size_text(*size, 1) for size in sizes if size)))
    assert rows == expected


def test_sizing_page_has_the_step_times_of_the_planner() -> None:
    """The cells of one row and device: all rows take three minutes of processor time."""
    assert sizing_page.heading() in PAGE
    fewest, quick = sizing_page.cells_of("Qwen3-0.6B", 12288, "h100")
    assert f"| Qwen3-0.6B, 12,288 | {fewest} | {quick} |" in PAGE
    assert quick != fewest.partition(",")[0]
