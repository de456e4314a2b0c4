"""Every problem of a manifest in one pass: the field, the value it has, what is allowed; warnings beside errors.

Used by `rstar2 validate`, by `rstar2 run` before it starts anything, and by the operator before it acts.
The schema (types, bounds, unknown fields) is pydantic's; what a schema cannot say is in rules.py.
"""

from __future__ import annotations

import copy
import difflib
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rstar2_train.api.base import PATTERNS
from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.rules import RULES


def check(data: dict[str, Any]) -> tuple[AgenticRLJob | None, list[Issue]]:
    """Validate plain data. Returns the job (None when there are errors) and all problems, errors first."""
    job, errors = _parse(data)
    problems = [_from_pydantic(error, data) for error in errors]
    broken = [problem.field.removesuffix(".type") for problem in problems]  # a stage of no known type says nothing more
    if job is None and errors:
        job = _repaired(data, errors)
    if job is not None:
        found = [problem for rule in RULES for problem in rule(job)]
        problems += [p for p in found if not any(_overlaps(p.field, field) for field in broken)]
    problems.sort(key=lambda problem: problem.warning)
    return (None if any(not p.warning for p in problems) else job), problems


def load(data: dict[str, Any]) -> AgenticRLJob:
    """The validated job. Raises InvalidJob with every error."""
    job, problems = check(data)
    if job is None:
        raise InvalidJob([problem for problem in problems if not problem.warning])
    return job


# --- schema errors -------------------------------------------------------------------------------------------------


def _parse(data: dict[str, Any]) -> tuple[AgenticRLJob | None, list[ErrorDetails]]:
    try:
        return AgenticRLJob.model_validate(data), []
    except ValidationError as error:
        return None, error.errors()


def _repaired(data: dict[str, Any], errors: list[ErrorDetails]) -> AgenticRLJob | None:
    """The job with the broken fields left out, so that the rules can look at the rest; None when it cannot stand."""
    data = copy.deepcopy(data)
    for _ in range(4):
        for error in errors:
            _replace(data, list(error["loc"]))
        job, errors = _parse(data)
        if job is not None:
            return job
    return None


_PLACEHOLDERS = {"type": "SFT", "name": "unnamed", "source": "unset", "data": "unset", "steps": 1, "action": "FailJob"}
"""Stand in for required fields that are broken or missing, so that the rest can be looked at."""


def _replace(data: Any, path: list[Any]) -> None:
    for key in path[:-1]:
        if (isinstance(data, dict) and key in data) or (isinstance(data, list) and key in range(len(data))):
            data = data[key]
        else:
            return
    if isinstance(data, dict):
        data.pop(path[-1], None)
        if path[-1] in _PLACEHOLDERS:
            data[path[-1]] = _PLACEHOLDERS[path[-1]]


def _overlaps(field: str, broken: str) -> bool:
    return (
        field == broken
        or field.startswith((broken + ".", broken + "["))
        or broken.startswith((field + ".", field + "["))
    )


def _from_pydantic(error: ErrorDetails, data: dict[str, Any]) -> Issue:
    location = [part for part in error["loc"] if part not in ("str", "int", "float")]
    field, value, kind = _dotted(location), error.get("input"), error["type"]
    if kind == "extra_forbidden":
        known = _known_fields(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"allowed here: {', '.join(known)}"
        return Issue(field, f"unknown field; {hint}")
    if kind == "missing":
        return Issue(field, "is required")
    message = error["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        message = "allowed: " + str(error["ctx"]["expected"])
    elif kind == "string_pattern_mismatch":
        message = f"allowed: {PATTERNS[error['ctx']['pattern']]}"
    else:
        message = message.replace("Input should be", "should be")
    return Issue(field, message, value if not isinstance(value, dict | list) else None)


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
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
