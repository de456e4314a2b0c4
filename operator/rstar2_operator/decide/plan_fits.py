"""The condition PlanFits: whether the memory plan of a job fits the largest device of its vendor. Pure.

A warning, never a reason to reject a job or to stop it: the plan is a model, and nodes may have other devices.
"""

from __future__ import annotations

from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.fit import has_plan, spec_warnings

CONDITION = "PlanFits"
FITS, TOO_SMALL = "Fits", "MemoryTooSmall"


def plan_fits(job: AgenticRLJob) -> list[dict[str, Any]]:
    """Return the condition; nothing for a job on the CPU, or with a model whose shape is unknown."""
    if not has_plan(job):
        return []
    issues = spec_warnings(job)
    message = "\n".join(f"{issue.field}: {issue.message}" for issue in issues)
    advice = "\nThis is an estimate (rstar2 plan); the job runs all the same." if issues else ""
    return [
        {
            "type": CONDITION,
            "status": "False" if issues else "True",
            "reason": TOO_SMALL if issues else FITS,
            "message": f"{message}{advice}"[:4096],
        }
    ]
