"""The benchmarks with figures of their own, one module each: what their leaderboards or papers report next to pass@1.

`statistics.py` adds the figures to a record, in the field that a plug-in names, and to the tracked metrics. The page
and the terminal show its tables. To add a benchmark, write a module with a class like `IFEval`, enter it in `PLUGINS`,
and add its field to `Figures` in `records.py`.

- `ifeval`: accuracy on instructions.
- `bfcl`: accuracy on calls of functions, with the means of the leaderboard.
- `figure_table`: the form of a plug-in's tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rstar2_train.evaluation.plugins.bfcl import BFCL
from rstar2_train.evaluation.plugins.figure_table import FigureTable
from rstar2_train.evaluation.plugins.ifeval import IFEval
from rstar2_train.evaluation.sample_result import SampleResult


class Plugin(Protocol):
    """The figures of one benchmark."""

    field: str
    """Field of `records.Figures` that has them."""

    def metrics(self, samples: Sequence[SampleResult]) -> Any:
        """Return the figures of the valid samples that belong to the benchmark; None if there are none."""
        ...

    def tracked(self, metrics: Any) -> dict[str, float | None]:
        """Return the tracked figures, by name."""
        ...

    def tables(self, metrics: Any, benchmarks: Mapping[str, Any]) -> list[FigureTable]:
        """Return the tables. `metrics`: of all samples; `benchmarks`: of each benchmark that has them, by name."""
        ...


PLUGINS: tuple[Plugin, ...] = (IFEval(), BFCL())
"""In the order of their tables."""
