"""Rules of a job with LoRA stages: fields that have no meaning with an adapter, and those that are not supported. Pure.

`rules.py` runs `lora`; cel.py has the rules that the API server can check.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2_train.api.engine_args import plain
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import SFTStage

TRANSPORT = (
    "must be Folder or Auto in a job with a GRPO stage with LoRA: such a stage sends its adapter alone, and its base "
    "never changes"
)
NOT_OFF = (
    "null does not switch LoRA off, because it is the same as unset: remove spec.trainer.lora, and set trainer.lora in "
    "the stages that train an adapter"
)
REPEATED = "has no effect: the other targets have its layers"
UNUSED = "has no effect: every stage that trains has its own trainer.lora, or no stage trains"
FIRST = "has no effect: no training stage precedes, so the adapter is a new one; remove it"
ONE_REPLICA = "must be 1 with LoRA: vLLM loads an adapter into one replica of the engine only; raise rollout.replicas"


def lora(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the faults of a job with LoRA stages."""
    stages = [(index, stage) for index, stage in enumerate(job.spec.stages) if job.lora(stage) is not None]
    rollout = job.spec.rollout
    for index, stage in enumerate(job.spec.stages):
        if stage.trainer is not None and stage.trainer.lora is not None and not stage.learns:
            message = f"is only allowed if type is SFT or GRPO; the type of this stage is {stage.type}"
            yield Issue(f"spec.stages[{index}].trainer.lora", message)
        own = stage.trainer
        is_null = own is not None and own.lora is None and "lora" in own.model_fields_set
        if is_null and job.spec.trainer.lora is not None:
            yield Issue(f"spec.stages[{index}].trainer.lora", NOT_OFF)
    inherits = [stage for stage in job.spec.stages if stage.learns and not (stage.trainer and stage.trainer.lora)]
    if job.spec.trainer.lora is not None and not inherits:
        yield Issue("spec.trainer.lora", UNUSED, warning=True)
    if any(stage.type == "GRPO" for _, stage in stages):
        if rollout.weight_transport in ("Delta", "Collective"):
            yield Issue("spec.rollout.weightTransport", TRANSPORT, rollout.weight_transport)
        for name, value in rollout.engine_args.items():
            if plain(name) == "data-parallel-size" and value != 1:
                yield Issue(f"spec.rollout.engineArgs.{name}", ONE_REPLICA)
    yield from _repeated_targets(job)
    yield from _continued(job)
    yield from _without_source(job)
    default = SFTStage.model_fields["learning_rate"].default
    for index, stage in stages:
        if stage.sft is not None and stage.sft.learning_rate == default:
            message = "is the default of full fine-tuning; an adapter needs about ten times as much (docs/lora.md)"
            yield Issue(f"spec.stages[{index}].sft.learningRate", message, default, warning=True)


def _repeated_targets(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the target modules whose layers the others have too."""
    shared = job.spec.trainer.lora
    adapters = [("spec.trainer.lora", shared)] if shared else []
    for index, stage in enumerate(job.spec.stages):
        if stage.trainer and stage.trainer.lora:
            adapters.append((f"spec.stages[{index}].trainer.lora", stage.trainer.lora))
    for at, lora in adapters:
        for place, target in enumerate(lora.target_modules):
            others = [*lora.target_modules[:place], *lora.target_modules[place + 1 :]]
            if others and lora.model_copy(update={"target_modules": others}).modules == lora.modules:
                yield Issue(f"{at}.targetModules[{place}]", REPEATED, target, warning=True)


def _continued(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the faults of stages that continue an adapter of another form, or a whole model."""
    for index, stage in enumerate(job.spec.stages):
        lora, source = job.lora(stage), job.continued(stage)
        if lora is None or source is None:
            continue
        own = stage.trainer is not None and stage.trainer.lora is not None
        field = f"spec.stages[{index}].trainer.lora.start" if own else "spec.trainer.lora.start"
        before = job.lora(source)
        if before is None:
            yield Issue(field, f"must be New: stage {source.name} before it trains the whole model", lora.start)
            continue
        fields = {"rank": "rank", "alpha": "alpha", "modules": "targetModules"}
        changed = [name for value, name in fields.items() if getattr(before, value) != getattr(lora, value)]
        if changed:
            message = f"must be New, or {' and '.join(changed)} those of stage {source.name}: the adapter has one form"
            yield Issue(field, message, lora.start)


def _without_source(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield each `start: Continue` with which no stage can continue an adapter."""
    shared = []
    for index, stage in enumerate(job.spec.stages):
        lora = job.lora(stage)
        if lora is None or lora.start == "New":
            continue
        if stage.trainer is None or stage.trainer.lora is None:
            shared.append(stage)
        elif job.continued(stage) is None:
            yield Issue(f"spec.stages[{index}].trainer.lora.start", FIRST, lora.start, warning=True)
    if shared and all(job.continued(stage) is None for stage in shared):
        yield Issue("spec.trainer.lora.start", FIRST, "Continue", warning=True)
