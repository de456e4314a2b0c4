"""Rules about settings of the weight versions that have no effect. Pure. `rules.py` runs `unused_weights`."""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.grpo_rules import NO_STAGE
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import RolloutSpec

PROBED = "has no effect in a GRPO stage with LoRA, where the probe is always on: remove the field"
ADAPTERS = "has no effect: every GRPO stage has LoRA, and each version is the whole adapter"
FOLDERS = "has no effect: with weightTransport Folder each version is the whole model"


def unused_weights(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the settings of weight versions without effect next to the others."""
    rollout = job.spec.rollout
    has_lora = [job.lora(stage) is not None for stage in job.spec.stages if stage.type == "GRPO"]
    if rollout.weight_probe is False and any(has_lora):
        yield Issue("spec.rollout.weightProbe", PROBED, rollout.weight_probe, warning=True)
    if rollout.weight_probe and not has_lora:
        yield Issue("spec.rollout.weightProbe", NO_STAGE, rollout.weight_probe, warning=True)
    if rollout.weight_transport != _default("weight_transport") and not has_lora:
        yield Issue("spec.rollout.weightTransport", NO_STAGE, rollout.weight_transport, warning=True)
    if rollout.weight_snapshot_every != _default("weight_snapshot_every"):
        reason = _without_snapshots(rollout, has_lora)
        if reason:
            yield Issue("spec.rollout.weightSnapshotEvery", reason, rollout.weight_snapshot_every, warning=True)


def _without_snapshots(rollout: RolloutSpec, has_lora: list[bool]) -> str:
    """Return why no version is a snapshot or a change; empty if one may be. `has_lora`: of each GRPO stage."""
    if not has_lora:
        return NO_STAGE
    if all(has_lora):
        return ADAPTERS
    return FOLDERS if rollout.weight_transport == "Folder" else ""


def _default(name: str) -> object:
    return RolloutSpec.model_fields[name].default
