"""Rules about the rewards of answers. Pure. `rules.py` runs `rewards`."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.tasks import RewardSpec, RewardType

_SCORED: tuple[RewardType, ...] = ("Program", "Tests")
_USED: dict[str, tuple[RewardType, ...]] = {
    **dict.fromkeys(("relative_tolerance", "absolute_tolerance", "needs_unit"), ("Numeric",)),
    **dict.fromkeys(("correct_from", "timeout_seconds"), _SCORED),
}
"""Field -> types of reward that use it."""


def rewards(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield rewards without the source that their type needs, and settings that their type does not use."""
    for index, reward in enumerate(job.spec.rewards):
        at = f"spec.rewards[{index}]"
        needs_source = reward.type == "Program"
        if needs_source and reward.source is None:
            yield Issue(f"{at}.source", "is required if type is Program: the file of the checker")
        if not needs_source and reward.source is not None:
            message = f"is only allowed if type is Program; the type of this reward is {reward.type}"
            yield Issue(f"{at}.source", message, reward.source)
        for name, types in _USED.items():
            value = getattr(reward, name)
            if reward.type not in types and value != RewardSpec.model_fields[name].default:
                message = f"has no effect if type is {reward.type}: it is for {' and '.join(types)}"
                yield Issue(f"{at}.{to_camel(name)}", message, value, warning=True)
