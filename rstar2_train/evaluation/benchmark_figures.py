"""The figures of benchmarks besides pass@1: what their leaderboards or papers report (`rstar2_train.benchmarks`).

`records.py` has a field for the figures of each plug-in, `statistics.py` computes and tracks them, the page and the
terminal show their tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rstar2_train.evaluation.figure_table import FigureTable
from rstar2_train.evaluation.record_model import RecordModel
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.utils.plugins import benchmark_plugins


class BenchmarkFigures(Protocol):
    """The figures of one benchmark."""

    field: str
    """Field of `records.Figures` that has them."""
    record: type[RecordModel]
    """Type of the field."""

    def metrics(self, samples: Sequence[SampleResult]) -> Any:
        """Return the figures of the valid samples that belong to the benchmark; None if there are none."""
        ...

    def tracked(self, metrics: Any) -> dict[str, float | None]:
        """Return the tracked figures, by name."""
        ...

    def tables(self, metrics: Any, benchmarks: Mapping[str, Any]) -> list[FigureTable]:
        """Return the tables. `metrics`: of all samples; `benchmarks`: of each benchmark that has them, by name."""
        ...


def figure_plugins() -> tuple[BenchmarkFigures, ...]:
    """Return the plug-ins, in the order of their tables."""
    return benchmark_plugins("figures")
