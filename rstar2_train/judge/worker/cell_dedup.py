"""What a worker remembers of cells: which are running, and how the last ones ended.

A Redis that lost the last second forgets that a cell was given out, or its answer. The worker then gives the same
answer again, and never runs the cell twice.
"""

from __future__ import annotations

from collections import OrderedDict

from rstar2_train.judge.types import CallResult

MOST_BYTES = 64 << 20
"""Of remembered output."""
MOST_ANSWERS = 4096


class ExecutedCells:
    """Cells by their task ids."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._ended: OrderedDict[str, CallResult] = OrderedDict()
        self._bytes = 0

    def __contains__(self, task: str) -> bool:
        return task in self._running or task in self._ended

    def begin(self, task: str) -> None:
        """A cell begins; it stays in memory until it has ended."""
        self._running.add(task)

    def answer(self, task: str) -> CallResult | None:
        """How a cell ended; None: it runs."""
        return self._ended.get(task)

    def end(self, task: str, result: CallResult) -> None:
        """A cell ended. The oldest answers make room."""
        self._running.discard(task)
        self._ended[task] = result
        self._bytes += _size(result)
        while len(self._ended) > MOST_ANSWERS or (self._bytes > MOST_BYTES and len(self._ended) > 1):
            _, oldest = self._ended.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(result: CallResult) -> int:
    return len(result.stdout) + len(result.stderr)
