"""The figures of a job in the operator's Prometheus metrics, from its status."""

from __future__ import annotations

from rstar2_operator.metrics import Metrics, figures_of
from rstar2_operator.observed import Object, ObservedJob

OBSERVED = ObservedJob(job={"metadata": {"name": "a", "namespace": "team"}})


def page(status: Object) -> list[str]:
    """Return the lines of the job's own metrics."""
    metrics = Metrics()
    metrics.measure_jobs(lambda: {("team", "a"): figures_of(status, OBSERVED, resource=None)})
    return [line for line in metrics.page().decode().splitlines() if line.startswith("rstar2_job_")]


def test_figures_have_the_rollouts_of_the_current_stage() -> None:
    """Idle share and makespan of the last step come from the row of the current stage, not of an earlier one."""
    figures = {"engines_idle": "0.125", "makespan_over_bound": "1.2", "reward": "0.5"}
    stages = [{"name": "rl-1", "metrics": {"engines_idle": "0.9"}}, {"name": "rl-2", "metrics": figures}]
    assert page({"phase": "Running", "stage": "rl-2", "step": 3, "stages": stages}) == [
        'rstar2_job_step{job="a",namespace="team",stage="rl-2"} 3.0',
        'rstar2_job_restarts{job="a",namespace="team"} 0.0',
        'rstar2_job_engines_idle_ratio{job="a",namespace="team",stage="rl-2"} 0.125',
        'rstar2_job_makespan_over_bound{job="a",namespace="team",stage="rl-2"} 1.2',
    ]


def test_figures_without_engines_are_omitted() -> None:
    """A stage without engines, or a job that has not started, has no such figures."""
    stages = [{"name": "sft", "metrics": {"loss": "0.1"}}, {"name": "rl-1"}]
    for stage in ("sft", "rl-1", None):
        assert not any("idle" in line or "makespan" in line for line in page({"stage": stage, "stages": stages}))
    assert page({}) == ['rstar2_job_restarts{job="a",namespace="team"} 0.0']
