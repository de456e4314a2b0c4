"""One problem of a manifest: what `rstar2 validate`, `rstar2 run` and the operator's Invalid condition show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong, or (warning) probably not meant."""

    field: str
    message: str
    value: object = None
    warning: bool = False

    def __str__(self) -> str:
        shown = "" if self.value is None else f" is {_short(self.value)}"
        return f"{'warning' if self.warning else 'error'}: {self.field}{shown}: {self.message}"


class InvalidJob(Exception):
    """A manifest with errors; str() lists all of them, one a line."""

    def __init__(self, problems: list[Issue]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def duplicates(names: Sequence[str], at: str, scope: str) -> Iterator[Issue]:
    """A problem for every name that stands in `names` a second time. `at`: their list; `scope`: where they differ."""
    for number, name in enumerate(names):
        if name in names[:number]:
            yield Issue(f"{at}[{number}].name", f"stands twice; names are unique in {scope}", name)
