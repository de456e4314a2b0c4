"""The HTML report of `rstar2 eval`: one self-contained file that needs no server. Pure.

Texts of models and benchmark files are untrusted: Jinja escapes them, and the page's Content-Security-Policy forbids
scripts and external resources.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.evaluation.result import EvaluationResult, benchmark_rows, format_number
from rstar2_train.rewards.instructions import describe_instructions, holds_instructions

HERE = Path(__file__).parent


def render_page(result: EvaluationResult) -> str:
    """Return the page. The same result gives the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja").render(
        result=result,
        rows=benchmark_rows(result),
        powers=sorted(result.overall.pass_at_k),
        number=format_number,
        expected=_expected,
    )


def _expected(gold: str) -> str:
    """Return the known answer of a problem, or a description of its instructions."""
    return describe_instructions(gold) if holds_instructions(gold) else gold
