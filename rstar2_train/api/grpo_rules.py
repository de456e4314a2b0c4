"""Rules about the settings of GRPO stages that have no effect next to the others. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from rstar2_train.api.base import ApiModel
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob

NULL = "null is the same as unset, so the stage has the value of spec.grpo"


def null_fields(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the fields of stages with null, where spec.grpo has a value."""
    for index, stage in enumerate(job.spec.stages):
        for name in sorted(stage.grpo.model_fields_set) if stage.grpo is not None else ():
            value = getattr(job.spec.grpo, name)
            if getattr(stage.grpo, name) is None and value is not None:
                at = f"spec.stages[{index}].grpo.{to_camel(name)}"
                yield Issue(at, f"{NULL}: set {_default_of(name, value)}, or remove the field")


def _default_of(name: str, value: object) -> str:
    """Return what a stage sets for the default of a field."""
    if name == "reference_kl":
        return "{weight: 0}"
    return "{}" if isinstance(value, ApiModel) else "a value"
