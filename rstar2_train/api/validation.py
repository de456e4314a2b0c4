"""Validation of a manifest: all errors and warnings in one pass, each with field, value and what is allowed.

Used by `rstar2 validate`, by `rstar2 run` before it starts a process, and by the operator before it creates an object.
pydantic checks the schema (types, bounds, unknown fields); rules.py checks the rest.
"""

from __future__ import annotations

import copy
import difflib
import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rstar2_train.api.base import PATTERNS
from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.rules import RULES


def check(data: dict[str, Any]) -> tuple[AgenticRLJob | None, list[Issue]]:
    """Validate plain data. Return the job (None if there are errors) and all issues, errors first."""
    job, errors = _parse(data)
    issues = [_from_pydantic(error) for error in errors]
    broken = [issue.field.removesuffix(".type") for issue in issues]  # no rule applies to a stage of unknown type
    broken += [field for issue in issues for field in _DEPENDENT.get(issue.field, ())]
    if job is None and errors:
        job = _repaired(data, errors)
    if job is not None:
        of_rules = (issue for rule in RULES for issue in rule(job))
        issues += [issue for issue in of_rules if not any(_overlaps(issue.field, field) for field in broken)]
    issues.sort(key=lambda issue: issue.warning)
    return (None if any(not issue.warning for issue in issues) else job), issues


def load(data: dict[str, Any]) -> AgenticRLJob:
    """Return the validated job. Raises InvalidJob with all errors."""
    job, issues = check(data)
    if job is None:
        raise InvalidJob([issue for issue in issues if not issue.warning])
    return job


# --- schema errors -------------------------------------------------------------------------------------------------


def _parse(data: dict[str, Any]) -> tuple[AgenticRLJob | None, list[ErrorDetails]]:
    try:
        return AgenticRLJob.model_validate(data, by_alias=True, by_name=False), []
    except ValidationError as error:
        return None, error.errors()


def _repaired(data: dict[str, Any], errors: list[ErrorDetails]) -> AgenticRLJob | None:
    """Return the job without its broken fields, so that the rules can check the rest; None if that is impossible."""
    data = copy.deepcopy(data)
    for _ in range(4):
        for error in errors:
            _replace(data, list(error["loc"]), missing=error["type"] == "missing")
        job, errors = _parse(data)
        if job is not None:
            return job
    return None


_PLACEHOLDERS = {
    **{"type": "SFT", "name": "unnamed", "source": "unset", "data": "unset", "steps": 1, "action": "FailJob"},
    **{"vendor": "None", "resource": "unset/unset"},
}
"""Values for required fields that are broken or missing, so that the rules can check the rest."""

_DEPENDENT = {"spec.accelerator.vendor": ("spec.accelerator.resource", "spec.trainer.gpusPerReplica")}
"""Field -> fields whose rules depend on it, and are not checked if it is broken."""
_RENAMED = {
    "spec.model.instruct": "spec.model.assumeInstructionTuned",
    "spec.storage.reclaim": "spec.storage.reclaimPolicy",
    "spec.deadlines": "spec.pendingDeadlineSeconds or spec.activeDeadlineSeconds",
    "spec.retain": "spec.trajectories.keepSteps",
    "spec.judge.executors": "spec.executor.replicas",
    "spec.judge.cpuPerExecutor": "spec.executor.cpu",
    "spec.judge.isolation": "spec.executor.isolation",
    "spec.judge.runtimeClassName": "spec.executor.runtimeClassName",
    "spec.judge.limits.memoryMiB": "spec.judge.limits.memory",
    "spec.judge.limits.outputBytes": "spec.judge.limits.output",
    "spec.failurePolicy.rules.onReason": "onReasons",
    "spec.secretRefs.registryPrefix": "spec.registryPrefix",
    "spec.stages.trainerReplicas": "trainer.replicas",
    "spec.trainer.podDisruptionBudget": "spec.trainer.disruptionPolicy: Refuse",
    "spec.judge.limits.wallSeconds": "spec.judge.limits.timeoutSeconds",
    "spec.tools.wallSeconds": "timeoutSeconds",
    "spec.rewards.wallSeconds": "timeoutSeconds",
    "spec.agent.seconds": "spec.agent.timeoutSeconds",
    "spec.agent.episodes": "spec.agent.maxConcurrentEpisodes",
    "spec.environments.stepSeconds": "stepTimeoutSeconds",
    "spec.environments.episodes": "maxConcurrentEpisodes",
    **{
        f"{grpo}.{field}": f"objective.{field}"
        for grpo in ("spec.grpo", "spec.stages.grpo")
        for field in ("clipLow", "clipHigh")
    },
}
"""Path of a renamed or mistaken field, without list indices -> path of the field that replaces it."""


def _replace(data: Any, path: list[Any], *, missing: bool) -> None:
    for key in path[:-1]:
        if (isinstance(data, dict) and key in data) or (isinstance(data, list) and key in range(len(data))):
            data = data[key]
        else:
            return
    if isinstance(data, dict):
        data.pop(path[-1], None)
        if missing and path[-1] in _PLACEHOLDERS:
            data[path[-1]] = _PLACEHOLDERS[path[-1]]


def _overlaps(field: str, broken: str) -> bool:
    return (
        field == broken
        or field.startswith((broken + ".", broken + "["))
        or broken.startswith((field + ".", field + "["))
    )


def _from_pydantic(error: ErrorDetails) -> Issue:
    location = [part for part in error["loc"] if part not in ("str", "int", "float")]
    field, value, kind = _dotted(location), error.get("input"), error["type"]
    if kind == "extra_forbidden":
        return Issue(field, f"unknown field; {_hint(location)}")
    if kind == "missing":
        return Issue(field, "is required")
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    if kind == "literal_error":
        message = "allowed: " + str(error["ctx"]["expected"])
    elif kind == "string_pattern_mismatch":
        message = f"allowed: {PATTERNS[error['ctx']['pattern']]}"
        if isinstance(value, str) and value != value.lower() and re.search(error["ctx"]["pattern"], value.lower()):
            message += f"; without capitals it is valid: {value.lower()!r}"
    elif kind == "list_type":
        message = f"must be a list: write [{value}]" if isinstance(value, str) else "must be a list"
    elif kind == "model_type":
        message = f"should be an object with the fields {', '.join(_known_fields(location))}"
    return Issue(field, message, value if not isinstance(value, dict | list) else None)


def _hint(location: list[Any]) -> str:
    """Return the known field that an unknown one probably means, as a question."""
    path = ".".join(str(part) for part in location if not isinstance(part, int))
    if path in _RENAMED:
        return f"did you mean {_RENAMED[path]}?"
    known = _known_fields(location[:-1])
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(known)}"


def _dotted(location: list[Any]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _known_fields(location: list[Any]) -> list[str]:
    model: Any = AgenticRLJob
    for part in location:
        if isinstance(part, int):
            continue
        names = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        model = _model_in(names.get(str(part)))
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _model_in(arg))), None)
