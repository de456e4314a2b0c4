"""The results of executed cells that a worker keeps."""

import pytest

from rstar2_train.judge.types import CallResult
from rstar2_train.judge.worker import cell_dedup
from rstar2_train.judge.worker.cell_dedup import ExecutedCells


def test_executed_cells_keep_running_and_last_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running cell is always kept; of the finished ones only the last MAX_RESULTS."""
    monkeypatch.setattr(cell_dedup, "MAX_RESULTS", 3)
    cells = ExecutedCells()
    cells.start("runs")
    for n in range(10):
        cells.start(str(n))
        cells.finish(str(n), CallResult("ok", stdout=str(n)))
    assert "runs" in cells and cells.result("runs") is None
    assert [str(n) in cells for n in range(10)] == [False] * 7 + [True] * 3
    assert cells.result("9") == CallResult("ok", stdout="9")


def test_executed_cells_large_results_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of all kept results has a limit in bytes."""
    monkeypatch.setattr(cell_dedup, "MAX_BYTES", 100)
    cells = ExecutedCells()
    for name in "abc":
        cells.finish(name, CallResult("ok", stdout="x" * 60))
    assert [name in cells for name in "abc"] == [False, False, True]
