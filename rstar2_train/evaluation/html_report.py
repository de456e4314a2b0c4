"""The HTML page of an evaluation: one file with everything in it, for a browser, without a server. Pure.

What models and benchmark files wrote reaches it through Jinja with autoescape alone, and the page forbids scripts and
anything from elsewhere (Content-Security-Policy).
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.evaluation.result import EvaluationResult, format_number
from rstar2_train.rewards.instructions import described, is_gold

HERE = Path(__file__).parent


def render_page(result: EvaluationResult) -> str:
    """The page. The same result gives the same text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rows = [(name, one, result.benchmark_confidence[name]) for name, one in result.benchmarks.items()]
    if len(rows) > 1:
        rows.append(("all", result.overall, result.confidence))
    return environment.get_template("page.html.jinja").render(
        result=result, rows=rows, powers=sorted(result.overall.pass_at_k), number=format_number, known=_known
    )


def _known(gold: str) -> str:
    """What a problem was graded by, for people."""
    return described(gold) if is_gold(gold) else gold
