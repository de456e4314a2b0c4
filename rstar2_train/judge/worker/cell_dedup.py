"""The cells that a worker has run or is running, so that no cell runs twice.

A Redis that lost its last second may deliver a cell again, or may have lost its result. The worker then returns the
result that it kept.
"""

from __future__ import annotations

from collections import OrderedDict

from rstar2_train.judge.types import CallResult

MAX_BYTES = 64 << 20
"""Output of all kept results."""
MAX_RESULTS = 4096


class ExecutedCells:
    """Running cells, and the results of the last ones, by call id."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._results: OrderedDict[str, CallResult] = OrderedDict()
        self._bytes = 0

    def __contains__(self, id: str) -> bool:
        return id in self._running or id in self._results

    def start(self, id: str) -> None:
        """Record that a cell starts. It stays recorded until `finish`."""
        self._running.add(id)

    def result(self, id: str) -> CallResult | None:
        """Return the result of a cell; None while it runs."""
        return self._results.get(id)

    def finish(self, id: str, result: CallResult) -> None:
        """Keep the result of a cell. The oldest results are dropped when there are too many."""
        self._running.discard(id)
        self._results[id] = result
        self._bytes += _size(result)
        while len(self._results) > MAX_RESULTS or (self._bytes > MAX_BYTES and len(self._results) > 1):
            _, oldest = self._results.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(result: CallResult) -> int:
    return len(result.stdout) + len(result.stderr)
