"""docs/sizing.md has the sizes that the planner computes."""

from __future__ import annotations

from scripts.docs import sizing_page


def test_sizing_page_has_the_sizes_of_the_planner() -> None:
    """`python -m scripts.docs.sizing_page` writes the table again."""
    page = sizing_page.PAGE.read_text("utf-8")
    assert sizing_page.with_table(page) == page
    assert sizing_page.table().count("| Qwen3-") == len(sizing_page.MODELS) * len(sizing_page.BUDGETS)
