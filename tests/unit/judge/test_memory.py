"""What the judge remembers, and which of Redis's refusals it waits out."""

import pytest
from redis.exceptions import ExecAbortError, OutOfMemoryError, ReadOnlyError, ResponseError

from rstar2_train.judge.queue import transient
from rstar2_train.judge.types import CallResult
from rstar2_train.judge.worker import cell_dedup
from rstar2_train.judge.worker.cell_dedup import ExecutedCells


def test_a_running_cell_is_never_forgotten_and_old_answers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_dedup, "MOST_ANSWERS", 3)
    known = ExecutedCells()
    known.begin("runs")
    for n in range(10):
        known.begin(str(n))
        known.end(str(n), CallResult("ok", stdout=str(n)))
    assert "runs" in known and known.answer("runs") is None
    assert [str(n) in known for n in range(10)] == [False] * 7 + [True] * 3
    assert known.answer("9") == CallResult("ok", stdout="9")


def test_large_answers_are_forgotten_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_dedup, "MOST_BYTES", 100)
    known = ExecutedCells()
    for name in "abc":
        known.end(name, CallResult("ok", stdout="x" * 60))
    assert [name in known for name in "abc"] == [False, False, True]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), True),
        (ReadOnlyError("You can't write against a read only replica."), True),
        (ResponseError("MISCONF Errors writing to the AOF file"), True),
        (ResponseError("Command # 1 (RPUSH a b) of pipeline caused error: ('MISCONF Errors writing',)"), True),
        (ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), True),
        (ExecAbortError("Transaction discarded because of: READONLY You can't write against a replica."), True),
        (ExecAbortError("Transaction discarded because of previous errors."), False),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (ResponseError("Command # 1 (RPUSH a MISCONF) of pipeline caused error: ('WRONGTYPE Operation',)"), False),
        (ResponseError("WRONGTYPE Operation against a key"), False),
    ],
)
def test_only_refusals_for_now_are_waited_out(error: ResponseError, passes: bool) -> None:
    assert transient(error) is passes
