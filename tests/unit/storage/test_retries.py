"""Failed requests are repeated, with growing delays, until a bound in time."""

from __future__ import annotations

import pytest

from rstar2_train.storage.retries import Retries
from rstar2_train.storage.store import AccessDenied, StorageUnavailable


class Clock:
    """A clock that only moves when a caller sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.delays: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds


def failing(times: int, error: Exception) -> tuple[list[int], object]:
    calls: list[int] = []

    def operation() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return calls, operation


def test_retries_ten_minutes_of_failures_cost_time_only() -> None:
    """An outage shorter than the patience ends with the result; the delays grow up to their maximum."""
    clock = Clock()
    calls, operation = failing(40, StorageUnavailable("503 SlowDown"))
    retries = Retries(patience=900, clock=lambda: clock.now, sleep=clock.sleep)
    assert retries.run(operation) == "done"  # type: ignore[arg-type]
    assert 400 < clock.now < 900 and len(calls) == 41
    assert clock.delays[0] < 0.2 and max(clock.delays) <= 22.5


def test_retries_count_from_the_first_failure() -> None:
    """An upload that fails after more than the patience is repeated: the server answered until then."""
    clock, failures = Clock(), [StorageUnavailable("503 SlowDown")]

    def upload() -> str:
        clock.now += 700
        if failures:
            raise failures.pop()
        return "done"

    assert Retries(patience=600, clock=lambda: clock.now, sleep=clock.sleep).run(upload) == "done"


def test_retries_end_at_the_bound_with_the_servers_words() -> None:
    """After the patience the last error is raised, with its words and the time."""
    clock = Clock()
    _, operation = failing(10**6, StorageUnavailable("503 SlowDown"))
    with pytest.raises(StorageUnavailable, match=r"503 SlowDown \(repeated for 600 s\)"):
        Retries(patience=600, clock=lambda: clock.now, sleep=clock.sleep).run(operation)  # type: ignore[arg-type]
    assert clock.now == pytest.approx(600)


def test_retries_do_not_repeat_a_denial() -> None:
    """An error that the next try would have too is raised immediately."""
    calls, operation = failing(5, AccessDenied("no"))
    with pytest.raises(AccessDenied):
        Retries(sleep=lambda seconds: pytest.fail("waited")).run(operation)  # type: ignore[arg-type, return-value]
    assert len(calls) == 1
