"""Renders HTML pages from Jinja templates, with escaping of all values."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def render_template(template: Path, **values: Any) -> str:
    """Return the page. All values are escaped, and an undefined value is an error (jinja2.UndefinedError)."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(values)
