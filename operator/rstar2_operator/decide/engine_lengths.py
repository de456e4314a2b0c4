"""The sequence lengths that ready engines keep while an attempt runs, after an edit that needs shorter ones. Pure.

An edit of a length replaces the engines immediately, but the running attempt keeps its settings: shorter engines would
reject its rollouts.
"""

from __future__ import annotations

from rstar2_operator.decide.stage_progress import running_attempts
from rstar2_operator.observed import READY_ROLES, ObservedJob, ready_of
from rstar2_train.api.contracts import SEQUENCE_TOKENS

ROLES = ("rollout", "teacher")


def kept_lengths(observed: ObservedJob) -> dict[str, int]:
    """Return role -> tokens of the longest sequence of its ready engines; empty if no attempt runs.

    Engines that are not ready may be too large for their devices: a shorter length must reach them.
    """
    if not running_attempts(observed):
        return {}
    lengths = {role: _length(observed, role) for role in ROLES if ready_of(observed, role)[0]}
    return {role: length for role, length in lengths.items() if length}


def _length(observed: ObservedJob, role: str) -> int:
    kind, name = READY_ROLES[role]
    deployment = observed.child(kind, name(observed.name)) or {}
    containers = deployment.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    variables = (variable for container in containers for variable in container.get("env", ()))
    value = next((variable.get("value", "") for variable in variables if variable["name"] == SEQUENCE_TOKENS), "")
    return int(value) if value.isdecimal() else 0  # else another client has edited it
