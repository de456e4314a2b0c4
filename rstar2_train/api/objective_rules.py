"""Rules about the fields of an objective: which type has which field, and combinations without a meaning. Pure.

`rules.py` runs the public ones; cel.py has the same rules for the API server.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.engine_args import given_args
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import ObjectiveSpec, ReferenceKL, types_with
from rstar2_train.api.stages import Stage

REASONS = {
    "aggregation": "the mean is a part of the definition of every other type",
    "clip_low": "the loss of the other types clips no probability ratio",
    "clip_high": "the loss of the other types clips no probability ratio",
}
"""Field -> why other types do not have it."""
NEEDS_SOURCE = "source is required if type is Custom, and only allowed then"
TRUSTED = (
    "the file runs in the processes of the trainer, without the sandbox of tools, and reads the job's storage and "
    "secrets; use only code that you trust"
)
NEEDS_TEACHER = "teacher is required if type is Distillation, and only allowed then"
ONE_TEACHER = "set either source or endpoint, never both"
ONLY_WITH_ENDPOINT = "is only allowed with endpoint: the folder of source has one model"
TEMPERATURE_OF_SERVER = (
    "must be 1 with a teacher behind an endpoint or with spec.teacher: servers return log-probabilities at temperature "
    "1, and those of the policy are of the sampling temperature"
)
UNUSED_ENGINES = "has no effect: no GRPO stage has an objective with teacher.source; remove it"
NEEDS_REWARD = (
    "must be 0 if type is Distillation and rewardWeight is 0: the shaping changes a reward that has no term in the loss"
)
ONE_FROZEN_POLICY = (
    "must not be set if the objective's type is Distillation: the ranks hold one frozen policy, the teacher, and its "
    "term already is the K1 estimate of the divergence from it. In a stage, weight: 0 removes the term of spec.grpo"
)
OWN_TEACHER = (
    "must not be spec.model.source if rewardWeight is 0 and no training stage precedes: the policy equals this "
    "teacher, and nothing trains; name another teacher, or set rewardWeight"
)
SHORT_CONTEXT = "must be at least maxPromptTokens + maxResponseTokens + 1"
NEEDS_REFERENCE = "source is required if model is Source, and only allowed then"
NO_TERM = "has no effect: weight 0 removes the KL term"
NO_TERM_TO_REMOVE = "has no effect: there is no KL term of spec.grpo that 0 removes; remove referenceKl"
UNUSED_PENALTY = "has no effect unless overlongBufferRatio is above 0: set it, or remove overlongPenalty"
NO_SHAPING = (
    "must be 0 if type is MaxRL: its advantage divides by the mean reward of the group, which the shaping can reduce "
    "to 0 or below"
)


def only_for(name: str) -> str:
    """Return the rule of a field that not every type has, as the end of an error message."""
    types = list(types_with(name))
    reason = REASONS.get(name, "the other types have no such term")
    names = f"{', '.join(types[:-1])} or {types[-1]}" if types[1:] else types[0]
    return f"is only allowed if type is {names}: {reason}"


def reference_kl(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the faults of spec.grpo.referenceKl and of those of stages."""
    for at, grpo in job.grpo_fields():
        reference = grpo.reference_kl
        if reference is not None and (reference.model == "Source") != (reference.source is not None):
            yield Issue(f"{at}.referenceKl.source", NEEDS_REFERENCE, reference.source)
        if reference is not None and not reference.weight:
            yield from _without_term(reference, f"{at}.referenceKl")
            shared = job.spec.grpo.reference_kl
            if reference is shared or shared is None or not shared.weight:
                yield Issue(f"{at}.referenceKl.weight", NO_TERM_TO_REMOVE, 0, warning=True)
    for index, stage in enumerate(job.spec.stages):
        if stage.grpo is None:
            continue
        settings = job.grpo_settings(stage)
        if settings.objective.type == "Distillation" and settings.reference_kl is not None:
            yield Issue(source_field(stage, f"spec.stages[{index}].grpo", "reference_kl"), ONE_FROZEN_POLICY)


def _own_teachers(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the stages that start from their teacher, and have no other term."""
    for index, stage in enumerate(job.spec.stages):
        objective = job.grpo_settings(stage).objective if stage.grpo is not None else None
        if objective is None or objective.teacher is None or objective.reward_weight or job.trained_before(stage):
            continue
        if objective.teacher.source == job.spec.model.source:
            field = source_field(stage, f"spec.stages[{index}].grpo", "objective", ".teacher.source")
            yield Issue(field, OWN_TEACHER, objective.teacher.source)


def _without_term(reference: ReferenceKL, at: str) -> Iterator[Issue]:
    for name in ("estimator", "model", "source"):
        value = getattr(reference, name)
        if value != ReferenceKL.model_fields[name].default:
            yield Issue(f"{at}.{name}", NO_TERM, value, warning=True)


def objectives(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the faults of spec.grpo.objective and of the objectives of stages."""
    for at, grpo in job.grpo_fields():
        if grpo.objective is not None:
            yield from _objective(grpo.objective, f"{at}.objective")
    yield from _own_teachers(job)


def unused_token(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield a token of a teacher's server that no stage uses."""
    teachers = [grpo.objective.teacher for _, grpo in job.grpo_fields() if grpo.objective]
    if job.spec.secret_refs.teacher is not None and not any(teacher and teacher.endpoint for teacher in teachers):
        yield Issue("spec.secretRefs.teacher", "is not used: no objective has teacher.endpoint", warning=True)


def unused_engines(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield engines of a teacher that no stage uses."""
    if job.spec.teacher is not None and not any(map(job.served_teacher, job.spec.stages)):
        yield Issue("spec.teacher", UNUSED_ENGINES, warning=True)


def source_field(stage: Stage, at: str, name: str, member: str = "") -> str:
    """Return the path of the field, or of its member, that set a GRPO value: the stage's own, or that of spec.grpo."""
    assert stage.grpo is not None
    path = f"{type(stage.grpo).model_fields[name].alias}{member}"
    return f"{at}.{path}" if getattr(stage.grpo, name) is not None else f"spec.grpo.{path} (for stage {stage.name})"


def served_teachers(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the stages whose temperature, or length of a sequence, a teacher's server cannot rate."""
    yield from _short_contexts(job)
    for index, stage in enumerate(job.spec.stages):
        settings = job.grpo_settings(stage) if stage.grpo is not None else None
        if settings is None or settings.objective.remote_teacher is None or settings.temperature == 1:
            continue
        field = source_field(stage, f"spec.stages[{index}].grpo", "temperature")
        yield Issue(field, TEMPERATURE_OF_SERVER, settings.temperature)


def _short_contexts(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield a max-model-len of the teacher's engines that is too small for a stage: a rating has one token more."""
    spec = job.spec.teacher
    length = given_args(spec).get("max-model-len") if spec is not None else None
    if type(length) is not int:
        return
    for stage in job.spec.stages:
        if job.served_teacher(stage) is None:
            continue
        settings = job.grpo_settings(stage)
        needed = settings.max_prompt_tokens + settings.max_response_tokens + 1
        if length < needed:
            message = f"{SHORT_CONTEXT}: {needed} for stage {stage.name}; raise it, or remove it"
            yield Issue("spec.teacher.engineArgs.max-model-len", message, length)


def _objective(spec: ObjectiveSpec, at: str) -> Iterator[Issue]:
    for name in spec.foreign_fields():
        message = f"{only_for(name)}; the type of this objective is {spec.type}"
        yield Issue(f"{at}.{ObjectiveSpec.model_fields[name].alias}", message, getattr(spec, name))
    if spec.type == "Custom" and spec.source is None:
        yield Issue(f"{at}.source", NEEDS_SOURCE)
    elif spec.type == "Custom":
        yield Issue(f"{at}.source", TRUSTED, spec.source, warning=True)
    if (spec.type == "Distillation") != (spec.teacher is not None):
        yield Issue(f"{at}.teacher", NEEDS_TEACHER)
    if spec.teacher is not None:
        if (spec.teacher.source is None) == (spec.teacher.endpoint is None):
            yield Issue(f"{at}.teacher", ONE_TEACHER)
        if spec.teacher.model is not None and spec.teacher.endpoint is None:
            yield Issue(f"{at}.teacher.model", ONLY_WITH_ENDPOINT, spec.teacher.model)
    if spec.type == "Distillation" and spec.overlong_buffer_ratio and not spec.reward_weight:
        yield Issue(f"{at}.overlongBufferRatio", NEEDS_REWARD, spec.overlong_buffer_ratio)
    if spec.overlong_penalty is not None and not spec.settings().overlong_buffer_ratio:
        yield Issue(f"{at}.overlongPenalty", UNUSED_PENALTY, spec.overlong_penalty)
    elif spec.overlong_penalty == 0:
        yield Issue(f"{at}.overlongPenalty", "0 shapes no reward: remove the shaping", 0, warning=True)
    if spec.type == "MaxRL" and spec.overlong_buffer_ratio:
        yield Issue(f"{at}.overlongBufferRatio", NO_SHAPING, spec.overlong_buffer_ratio)
