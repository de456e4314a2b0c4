"""The HTML page of an evaluation: one self-contained file that needs no server. Pure.

Texts of models and benchmark files are untrusted: Jinja escapes them, and the page's Content-Security-Policy forbids
scripts and external resources.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_train.evaluation.records import Evaluation
from rstar2_train.evaluation.result import benchmark_rows, format_number, plugin_tables
from rstar2_train.rewards.answer_forms import form_of
from rstar2_train.utils.html import render_template

TEMPLATE = Path(__file__).with_name("page.html.jinja")


def render_page(result: Evaluation) -> str:
    """Return the page. The same result gives the same text."""
    return render_template(
        TEMPLATE,
        result=result,
        rows=benchmark_rows(result),
        tables=plugin_tables(result),
        powers=sorted(result.pass_at_k),
        number=format_number,
        expected=_expected,
    )


def _expected(gold: str) -> str:
    """Return the known answer of a problem in readable form."""
    form = form_of(gold)
    return gold if form is None else form.describe(gold)
