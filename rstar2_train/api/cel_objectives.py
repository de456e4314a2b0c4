"""CEL form of objective_rules.py: which type of an objective has which field, and combinations without a meaning."""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.cel_rule import Rule, each_grpo
from rstar2_train.api.objective_rules import (
    NEEDS_REFERENCE,
    NEEDS_REWARD,
    NEEDS_SOURCE,
    NEEDS_TEACHER,
    NO_SHAPING,
    ONE_FROZEN_POLICY,
    ONE_TEACHER,
    ONLY_WITH_ENDPOINT,
    TEMPERATURE_OF_SERVER,
    UNUSED_PENALTY,
    only_for,
)
from rstar2_train.api.objectives import OBJECTIVES, ObjectiveSpec, types_with


def _of_objective(at: str) -> Iterator[Rule]:
    """Yield the rules about the fields of an objective's type."""
    for name, field in ObjectiveSpec.model_fields.items():
        if types := list(types_with(name)):
            rule = f"!has(self.{field.alias}) || self.type in {types}"
            yield Rule(at=at, rule=rule, message=only_for(name), field=f".{field.alias}")
    yield Rule(at=at, rule="(self.type == 'Custom') == has(self.source)", message=NEEDS_SOURCE, field=".source")
    shaped = "has(self.overlongBufferRatio) && self.overlongBufferRatio > 0.0"
    rule = f"self.type != 'MaxRL' || !({shaped})"
    yield Rule(at=at, rule=rule, message=NO_SHAPING, field=".overlongBufferRatio")
    shaped_types = [kind for kind, fields in OBJECTIVES.items() if fields.get("overlong_buffer_ratio")]
    default = f"self.type in {shaped_types} ? 1.0 : 0.0"
    rule = f"!has(self.overlongPenalty) || self.?overlongBufferRatio.orValue({default}) > 0.0"
    yield Rule(at=at, rule=rule, message=UNUSED_PENALTY, field=".overlongPenalty")
    rule = "(self.type == 'Distillation') == has(self.teacher)"
    yield Rule(at=at, rule=rule, message=NEEDS_TEACHER, field=".teacher")
    rule = "!has(self.teacher) || has(self.teacher.source) != has(self.teacher.endpoint)"
    yield Rule(at=at, rule=rule, message=ONE_TEACHER, field=".teacher")
    rule = "!has(self.teacher) || !has(self.teacher.model) || has(self.teacher.endpoint)"
    yield Rule(at=at, rule=rule, message=f"model {ONLY_WITH_ENDPOINT}", field=".teacher")
    rule = f"self.type != 'Distillation' || self.?rewardWeight.orValue(0.0) > 0.0 || !({shaped})"
    yield Rule(at=at, rule=rule, message=NEEDS_REWARD, field=".overlongBufferRatio")


def _of_reference(at: str) -> Rule:
    return Rule(at=at, rule="(self.model == 'Source') == has(self.source)", message=NEEDS_REFERENCE, field=".source")


RULES = (
    *_of_objective("spec.grpo.objective"),
    *_of_objective("spec.stages[].grpo.objective"),
    _of_reference("spec.grpo.referenceKl"),
    _of_reference("spec.stages[].grpo.referenceKl"),
    each_grpo(
        "(has(s.grpo.objective) ? s.grpo.objective.type : self.grpo.?objective.type.orValue('GRPO')) != 'Distillation'"
        " || s.grpo.?referenceKl.weight.or(self.grpo.?referenceKl.weight).orValue(0.0) == 0.0",
        f"referenceKl {ONE_FROZEN_POLICY}",
    ),
    each_grpo(
        "!(has(s.grpo.objective) ? s.grpo.objective.?teacher.endpoint.hasValue() ||"
        " has(self.teacher) && has(s.grpo.objective.teacher) : self.grpo.?objective.teacher.endpoint.hasValue() ||"
        " has(self.teacher) && self.grpo.?objective.teacher.hasValue())"
        " || s.grpo.?temperature.or(self.grpo.?temperature).orValue(1.0) == 1.0",
        f"temperature {TEMPERATURE_OF_SERVER}",
    ),
)
