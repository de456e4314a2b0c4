"""Rules about the settings of GRPO stages that have no effect next to the others. Pure.

`UNUSED` has every field of `grpo` and of the objectives that another setting can make useless. `rules.py` runs the
public rules; faults with an error of their own, such as a field of another type, are in objective_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from rstar2_train.api.base import ApiModel
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import ObjectiveSpec, set_fields
from rstar2_train.api.stages import GRPODefaults, GRPOSettings, Stage

NULL = "null is the same as unset, so the stage has the value of spec.grpo"
ONLY_UPDATE = "the probability ratio is 1 in the only update of a step: raise updatesPerStep"
TWO_WINDOWS = "the stage has fewer steps than two windows of windowSteps"
NEVER = "the trigger never applies, because no reward falls below 0: lower drop, or set enabled: false"
NO_STAGE = "has no effect: the job has no GRPO stage"
EVERY_STAGE = "has no effect: every GRPO stage sets its own value"
DATA = ("data", "data_from")
"""Fields of which a stage inherits none if it sets one."""
USED_WITHOUT_STAGE = {"max_prompt_tokens"}
"""Fields of spec.grpo that count for other types of stages: the longest sequence of the engines."""


class Unused(NamedTuple):
    """A combination in which fields have no effect."""

    fields: tuple[str, ...]
    """Python names below `grpo`, with dots."""
    applies: Callable[[AgenticRLJob, Stage, GRPOSettings], bool]
    reason: str


def _inherits_optimizer(job: AgenticRLJob, stage: Stage) -> bool:
    """Return whether a stage can continue the optimiser of the one before: of GRPO, with the same parameters."""
    source = job.trained_before(stage)
    if source is None or source.type != "GRPO":
        return False
    return job.continued(stage) is not None or (job.lora(source) is None and job.lora(stage) is None)


def _limits_sizes(grpo: GRPOSettings) -> bool:
    """Return whether the collapse trigger has a minimum of the effective sample size."""
    return grpo.max_staleness > 0 and grpo.collapse.min_effective_sample_size > 0


UNUSED = (
    Unused(
        (
            *("objective.clip_low", "objective.clip_high", "objective.max_divergence"),
            *("objective.positive_temperature", "objective.negative_temperature"),
        ),
        lambda job, stage, grpo: grpo.updates_per_step == 1,
        ONLY_UPDATE,
    ),
    Unused(
        ("objective.max_ratio",),
        lambda job, stage, grpo: grpo.updates_per_step == 1 and grpo.objective.max_ratio >= 1,
        ONLY_UPDATE,
    ),
    Unused(
        ("resample.mode", "resample.min_per_class"),
        lambda job, stage, grpo: grpo.keep_per_prompt == grpo.rollouts_per_prompt,
        "every rollout is kept: lower keepPerPrompt",
    ),
    Unused(
        ("dynamic_sampling",),
        lambda job, stage, grpo: grpo.objective.teacher is not None and grpo.objective.truncated == "Train",
        "every group trains with a teacher, also one with equal rewards: remove it",
    ),
    Unused(
        ("importance_correction.cap",),
        lambda job, stage, grpo: grpo.correction_cap is None and not (_limits_sizes(grpo) and grpo.collapse.enabled),
        "the correction is off (maxStaleness is 0, or enabled is false): set enabled: true",
    ),
    Unused(
        ("collapse.drop", "collapse.window_steps", "collapse.min_effective_sample_size"),
        lambda job, stage, grpo: not grpo.collapse.enabled,
        "the trigger is off: set enabled: true",
    ),
    Unused(
        ("collapse.min_effective_sample_size",),
        lambda job, stage, grpo: grpo.max_staleness == 0,
        "it is measured only if maxStaleness is above 0",
    ),
    Unused(
        ("collapse.min_effective_sample_size", "collapse.window_steps"),
        lambda job, stage, grpo: grpo.steps < grpo.collapse.window_steps,
        "windowSteps is larger than the steps of the stage",
    ),
    Unused(
        ("collapse.drop",),
        lambda job, stage, grpo: grpo.steps < 2 * grpo.collapse.window_steps,
        TWO_WINDOWS,
    ),
    Unused(
        ("collapse.window_steps",),
        lambda job, stage, grpo: not _limits_sizes(grpo) and grpo.steps < 2 * grpo.collapse.window_steps,
        TWO_WINDOWS,
    ),
    Unused(
        ("collapse.drop", "collapse.window_steps"),
        lambda job, stage, grpo: grpo.collapse.drop == 1 and not _limits_sizes(grpo),
        NEVER,
    ),
    Unused(
        ("advance_when.window_steps", "advance_when.min_steps"),
        lambda job, stage, grpo: (
            grpo.advance_when.truncation_below is None and grpo.advance_when.all_correct_above in (None, 1)
        ),
        "no trigger is set: set truncationBelow, or allCorrectAbove below 1",
    ),
    Unused(
        ("advance_when.truncation_below", "advance_when.all_correct_above"),
        lambda job, stage, grpo: max(grpo.advance_when.window_steps, grpo.advance_when.min_steps) >= grpo.steps,
        "the stage ends before the trigger can apply: windowSteps and minSteps must be below its steps",
    ),
    Unused(
        ("advance_when.all_correct_above",),
        lambda job, stage, grpo: grpo.advance_when.all_correct_above == 1,
        "no share is above 1: set a lower one",
    ),
    Unused(
        ("advance_when.min_steps",),
        lambda job, stage, grpo: grpo.advance_when.min_steps <= grpo.advance_when.window_steps,
        "a trigger needs windowSteps steps, which are not fewer: raise minSteps",
    ),
    Unused(
        ("reset_optimizer",),
        lambda job, stage, grpo: not _inherits_optimizer(job, stage),
        "the stage starts with a new optimiser: no GRPO stage before it trained the same parameters",
    ),
    Unused(
        ("router_replay",),
        lambda job, stage, grpo: job.lora(stage) is not None,
        "a model with LoRA is dense, and has no experts",
    ),
    Unused(
        ("warmup_steps",),
        lambda job, stage, grpo: _inherits_optimizer(job, stage) and not grpo.reset_optimizer,
        "the stage continues the optimiser of the stage before, without a warm-up: set resetOptimizer: true",
    ),
)
"""The combinations. A field with the value of its default is never reported."""


def unused_settings(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the settings without effect: of a stage, or of spec.grpo in all stages that have its value."""
    stages = [
        (index, stage, job.grpo_settings(stage))
        for index, stage in enumerate(job.spec.stages)
        if stage.type == "GRPO" and stage.grpo
    ]
    for path in dict.fromkeys(path for entry in UNUSED for path in entry.fields):
        inherited = []
        for index, stage, settings in stages:
            unused = _unused(job, stage, settings, path)
            if _has(stage.grpo, path):
                yield from _issues(f"spec.stages[{index}].grpo", path, [unused])
            elif _has(job.spec.grpo, path):
                inherited.append(unused)
        yield from _issues("spec.grpo", path, inherited)
    own = [stage.grpo for stage in job.spec.stages if stage.type == "GRPO"]
    for name, value in set_fields(job.spec.grpo).items():
        if name not in USED_WITHOUT_STAGE and all(_overrides(grpo, name) for grpo in own):
            scalar = None if isinstance(value, ApiModel) else value
            message = EVERY_STAGE if own else NO_STAGE
            yield Issue(f"spec.grpo.{to_camel(name)}", message, scalar, warning=True)


def _overrides(grpo: GRPODefaults | None, name: str) -> bool:
    """Return whether a stage does not have the value of spec.grpo, because it sets its own."""
    names = DATA if name in DATA else (name,)
    return any(getattr(grpo, own, None) is not None for own in names)


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


def _has(fields: ApiModel | None, path: str) -> bool:
    return getattr(fields, path.partition(".")[0], None) is not None


def _unused(job: AgenticRLJob, stage: Stage, settings: GRPOSettings, path: str) -> tuple[object, str]:
    """Return the value of a field in a stage, and why it has no effect; empty: it has, or it is the default.

    `settings`: the effective ones of the stage.
    """
    value = _value(settings, path)
    if value == _value(_defaults(settings.objective.type), path):
        return value, ""
    reasons = (entry.reason for entry in UNUSED if path in entry.fields and entry.applies(job, stage, settings))
    return value, next(reasons, "")


@cache
def _defaults(objective: str) -> GRPOSettings:
    """Return the settings of a stage that sets only the type of its objective."""
    return GRPOSettings(objective=ObjectiveSpec(type=objective).settings())


def _value(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def _issues(at: str, path: str, uses: list[tuple[object, str]]) -> Iterator[Issue]:
    """Yield the warning about a field, if it has no effect in any of its stages."""
    if uses and all(reason for _, reason in uses):
        value, reason = uses[0]
        field = ".".join(to_camel(name) for name in path.split("."))
        yield Issue(f"{at}.{field}", f"has no effect: {reason}", value, warning=True)
