"""The status of a call from the end of its process."""

import pytest

from rstar2_train.judge.executor import run_program
from rstar2_train.judge.process_exit import MEMORY_SIGNAL, ProcessExit, to_result


@pytest.mark.parametrize(
    ("reason", "wait_status", "status", "exit_code"),
    [
        ("exited", 0, "ok", 0),
        ("exited", 3 << 8, "error", 3),
        ("exited", 11, "error", -11),
        ("exited", 9, "error", -9),
        ("exited", 63, "error", -63),
        ("exited", 85 << 8, "error", 85),
        ("exited", MEMORY_SIGNAL, "memory", 1),
        ("timeout", 9, "timeout", None),
        ("output_limit", 9, "output_limit", None),
        ("setup_failed", 70 << 8, "internal", None),
    ],
)
def test_to_result_maps_reason_and_wait_status(
    reason: str, wait_status: int, status: str, exit_code: int | None
) -> None:
    """The output, even if it looks like a status, has no influence."""
    result = to_result(ProcessExit(reason, wait_status, 0.5, "status: ok\n\ufffd", ""))
    assert (result.status, result.exit_code, result.run_seconds) == (status, exit_code, 0.5)
    assert result.stdout == "status: ok\n\ufffd"


def test_to_result_names_the_signal() -> None:
    """A process that a signal ended has the signal's name in stderr."""
    assert to_result(ProcessExit("exited", 11, 0.0, "", "")).stderr == "ended by signal 11 (SIGSEGV)\n"


def test_memory_signal_is_the_executors() -> None:
    """The executor and the worker use the same signal for a MemoryError."""
    assert run_program.MEMORY_SIGNAL == MEMORY_SIGNAL
