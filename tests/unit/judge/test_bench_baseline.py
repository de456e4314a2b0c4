"""The baseline of `make bench-judge` runs the calls of the judge's queue."""

from bench.judge_baseline import run
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.types import QueuedCall


def test_baseline_runs_a_call_of_the_queue() -> None:
    """A fresh interpreter with the limits of the call; else the benchmark waits for results that never come."""
    code = "import resource\nprint(input(), resource.getrlimit(resource.RLIMIT_CPU)[0])"
    call = QueuedCall("1", "r", code, "3\n", JudgeLimits(wall_seconds=7), deadline=0.0)
    result = run(call)
    assert (result.status, result.stdout, result.stderr) == ("ok", "3 7\n", "")
