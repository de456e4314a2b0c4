"""An issue of a manifest: what `rstar2 validate`, `rstar2 run` and the operator's InvalidSpec message show. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Issue:
    """An error, or (warning) a setting that is probably a mistake."""

    field: str
    message: str
    value: object = None
    warning: bool = False

    def __str__(self) -> str:
        value = "" if self.value is None else f" is {_short(self.value)}"
        return f"{'warning' if self.warning else 'error'}: {self.field}{value}: {self.message}"


class InvalidJob(Exception):
    """A manifest with errors. str() lists all of them, one per line."""

    def __init__(self, problems: list[Issue]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
