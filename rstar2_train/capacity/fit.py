"""Whether a job fits into the memory of its devices, and the field to change if it does not. Pure.

`rstar2 plan` prints the issues as errors. The operator, which does not know the devices of its nodes, reports as a
warning any job that would not even fit the vendor's largest one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rstar2_train.api.engine_args import given_args
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.lora_rules import lora as lora_faults
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.adapter_slots import adapter_slots
from rstar2_train.capacity.engine_settings import accelerator_engine, engine_value_bytes
from rstar2_train.capacity.hardware_profile import HardwareProfile, largest_device
from rstar2_train.capacity.layout import DEFAULT_TOKENS, Machine, choose_layout, step_of
from rstar2_train.capacity.memory import (
    FLOAT32,
    EngineMemory,
    TrainerMemory,
    TrainerStep,
    engine_memory,
    trainer_memory,
)
from rstar2_train.capacity.model_shape import AdapterShape, ModelShape, UnknownModel, local_shape, read_shape
from rstar2_train.capacity.number_format import has_float32_versions, is_bfloat16, requested_format

TRAINER_SHARE = 0.92
"""Share of a GPU's memory that the trainer may use: the rest is the context of the driver and fragmentation."""
CPU_KV_BYTES = 256 * 2**20
"""Least KV cache of a CPU engine without kv-cache-memory-bytes: 170,000 tokens of the tiny model."""
CPU_SPARE_TOKENS = 128
"""Tokens of KV cache of a CPU engine besides two of the longest sequences."""
DEFAULT_PROMPT_TOKENS = 2048
"""Tokens of a prompt in stages without maxPromptTokens (Filter, Evaluate, validation)."""
MICRO_BATCH_STEPS = 256
"""Tokens between two values of tokensPerMicroBatch that are tried."""


def sequence_tokens(job: AgenticRLJob, stage: Stage) -> int:
    """Return the tokens of the longest sequence of a stage: prompt and response, or a conversation."""
    prompt = job.spec.grpo.max_prompt_tokens or DEFAULT_PROMPT_TOKENS
    if stage.sft is not None:
        return stage.sft.max_tokens
    if stage.type == "GRPO":
        settings = job.grpo_settings(stage)
        return settings.max_prompt_tokens + settings.max_response_tokens
    member = stage.filter or stage.evaluate
    assert member is not None
    return prompt + member.sampling.max_response_tokens


def rated_tokens(job: AgenticRLJob, stage: Stage) -> int:
    """Return the tokens of the longest request to a teacher's engine: a rating samples one token."""
    return sequence_tokens(job, stage) + 1


def longest_sequence(job: AgenticRLJob) -> int:
    """Return the tokens of the longest prompt and response that an engine of the job samples; 0 without engines."""
    lengths = [0, *(sequence_tokens(job, stage) for stage in job.spec.stages if stage.needs_engines)]
    if job.spec.validation is not None:
        prompt = job.spec.grpo.max_prompt_tokens or DEFAULT_PROMPT_TOKENS
        lengths.append(prompt + job.spec.validation.sampling.max_response_tokens)
    return max(lengths)


def ranks_of(job: AgenticRLJob, stage: Stage) -> int:
    """Return the trainer ranks of a stage."""
    return job.replicas(stage) * job.spec.trainer.ranks_per_replica


def transport_of(job: AgenticRLJob, stage: Stage, *, stored: int | None = None) -> str:
    """Return the path of a stage's weights to the engines, with the choice of Auto: Adapter for one with LoRA.

    `stored`: as of `version_value_bytes`.
    """
    if job.lora(stage) is not None:
        return "Adapter"
    transport = job.spec.rollout.weight_transport
    if transport == "Auto":
        return "Folder" if version_value_bytes(job, stored=stored) == FLOAT32 else "Delta"
    return transport


def version_value_bytes(job: AgenticRLJob, *, stored: int | None = None) -> int:
    """Return the bytes per weight of a version for the engines.

    `stored`: those of the model (`ModelShape.stored_bytes`); None: 2 on GPUs, and 4 on CPUs.
    """
    if has_float32_versions(job.spec):
        return FLOAT32
    return stored or (FLOAT32 if job.spec.accelerator.vendor == "None" else 2)


def publishes_changes(job: AgenticRLJob, stage: Stage, *, stored: int | None = None) -> bool:
    """Return whether the ranks of a stage publish changes of the weights, so that they keep those published last.

    `stored`: as of `version_value_bytes`.
    """
    return stage.type == "GRPO" and transport_of(job, stage, stored=stored) in ("Delta", "Collective")


def adapter_of(job: AgenticRLJob, stage: Stage, shape: ModelShape) -> AdapterShape | None:
    """Return the size of the adapter that a stage trains; None: it trains the whole model."""
    lora = job.lora(stage)
    return None if lora is None else shape.adapter(rank=lora.rank, modules=lora.modules)


def trainer_value_bytes(job: AgenticRLJob) -> int:
    """Return the bytes per value of forward and backward; on the CPU those of this machine."""
    try:
        return 2 if is_bfloat16(requested_format(job.spec), job.spec.accelerator.vendor) else 4
    except RuntimeError:  # planned here, run on another machine
        return 2


def trainer_step(job: AgenticRLJob, stage: Stage, shape: ModelShape) -> TrainerStep:
    """Return the settings of a stage's training step that its memory depends on.

    A sequence that is longer than tokensPerMicroBatch is a micro-batch of its own.
    """
    trainer = job.spec.trainer
    return TrainerStep(
        ranks=ranks_of(job, stage),
        tokens=max(trainer.tokens_per_micro_batch or DEFAULT_TOKENS, sequence_tokens(job, stage)),
        chunk=trainer.logprob_chunk_tokens,
        checkpointed_layers=0 if trainer.recomputes is False else shape.layers,
        value_bytes=trainer_value_bytes(job),
        offload=trainer.offload and job.spec.accelerator.vendor != "None",
        published=publishes_changes(job, stage, stored=shape.stored_bytes),
        reference=reference_shape(job, stage, shape),
        adapter=adapter_of(job, stage, shape),
        snapshot_on_device=job.spec.accelerator.vendor == "None",
    )


def reference_shape(job: AgenticRLJob, stage: Stage, shape: ModelShape) -> ModelShape | None:
    """Return the shape of the reference policy that the ranks hold besides the model; None: they hold none.

    The base of the stage's adapter is no second model. A policy whose shape is not known counts as the model.
    """
    settings = job.grpo_settings(stage) if stage.type == "GRPO" else None
    if settings is None or not settings.has_reference:
        return None
    teacher, reference = settings.objective.teacher, settings.reference_kl
    source = teacher.source if teacher is not None else reference.source if reference is not None else None
    if job.lora(stage) is not None:
        starts_from_base = job.continued(stage) is None
        if source is None and reference is not None and reference.model == "Stage" and starts_from_base:
            return None
        is_initial = source == job.spec.model.source or (reference is not None and reference.model == "Initial")
        if is_initial and _base_stage(job, stage) is None:
            return None
    if source is None:
        return shape
    return local_shape(source) or shape


def _base_stage(job: AgenticRLJob, stage: Stage) -> Stage | None:
    """Return the stage whose model is the base of a stage's adapter; None: it is the model of the job."""
    source = job.continued(stage)
    return job.trained_before(stage) if source is None else _base_stage(job, source)


def is_packed(job: AgenticRLJob) -> bool:
    """Return whether micro-batches are packed without padding: by default on accelerators."""
    packing = job.spec.trainer.packing
    return job.spec.accelerator.vendor != "None" if packing is None else packing


def chosen_step(job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile) -> TrainerStep:
    """Return the settings of a stage's training step with the layout that the ranks choose on devices of the profile.

    Its `ranks` are those of one copy of the weights.
    """
    trainer, step = job.spec.trainer, trainer_step(job, stage, shape)
    share = trainer.ranks_per_replica if job.spec.accelerator.vendor == "None" else 1
    machine = Machine(
        ranks=step.ranks,
        ranks_per_host=trainer.ranks_per_replica,
        memory=profile.memory_bytes / share,
        value_bytes=step.value_bytes,
        accelerated=job.spec.accelerator.vendor != "None",
    )
    layout = choose_layout(
        shape,
        machine,
        chunk=step.chunk,
        tokens=trainer.tokens_per_micro_batch,
        checkpointing=trainer.recomputes,
        sharding=trainer.sharding,
        offload=trainer.offload,
        longest=sequence_tokens(job, stage),
        published=step.published,
        reference=step.reference,
        adapter=step.adapter,
    )
    largest = dataclasses.replace(layout, tokens=max(layout.tokens, sequence_tokens(job, stage)))
    return step_of(shape, largest, value_bytes=step.value_bytes, chunk=step.chunk, accelerated=machine.accelerated)


def cpu_kv_bytes(per_token: int, *, longest: int) -> int:
    """Return the bytes of the KV cache of a CPU engine. `per_token`: bytes per token, `longest`: longest sequence."""
    return max(CPU_KV_BYTES, 2 * per_token * (longest + CPU_SPARE_TOKENS))


def engine_of(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile, *, tokens: int) -> EngineMemory:
    """Return the memory of an engine of the job. `tokens`: of the longest prompt and response.

    On the CPU the KV cache has its own size, and slots for adapters are small.
    """
    rollout = job.spec.rollout
    if job.spec.accelerator.vendor == "None":
        size, arguments = engine_value_bytes(rollout, "None"), given_args(rollout)
        default = cpu_kv_bytes(shape.kv_bytes_per_token(size), longest=longest_sequence(job))
        cache = float(arguments.get("kv-cache-memory-bytes") or default)
        return engine_memory(
            shape,
            device_bytes=cache + shape.parameters * size,
            tensor_parallel=1,
            sequence_tokens=tokens,
            value_bytes=size,
            share=1.0,
            overhead=0.0,
            block=32,
        )
    return accelerator_engine(job, rollout, shape, profile, tokens=tokens, adapters=adapter_slots(job))


def misfits(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile) -> list[Issue]:
    """Return an issue for each stage and role that does not fit the devices; each names the field to change."""
    issues = [*_trainer_misfits(job, shape, profile), *_engine_misfits(job, shape, profile)]
    if shape.max_positions is not None:
        for index, stage in enumerate(job.spec.stages):
            tokens = sequence_tokens(job, stage)
            if stage.needs_engines and tokens > shape.max_positions:
                message = (
                    f"prompt and response may have {tokens:,} tokens, the model's limit is {shape.max_positions:,}"
                )
                issues.append(Issue(f"spec.stages[{index}].{stage.type.lower()}", message, None, warning=True))
    return issues


def spec_warnings(job: AgenticRLJob) -> list[Issue]:
    """Return the issues of a job on the largest devices of its vendor; none if `has_plan` is False.

    For the operator: never a reason to reject a job.
    """
    shape = _known_shape(job)
    if shape is None:
        return []
    profile = largest_device(job.spec.accelerator.vendor)
    return [issue for issue in misfits(job, shape, profile) if not issue.warning]


def has_plan(job: AgenticRLJob) -> bool:
    """Return whether the operator can plan a job: it uses GPUs, and the shape of its model is known."""
    return _known_shape(job) is not None


def _known_shape(job: AgenticRLJob) -> ModelShape | None:
    if job.spec.accelerator.vendor == "None":
        return None
    try:
        return read_shape(job.spec.model.source)
    except UnknownModel:
        return None


def _trainer_misfits(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile) -> Iterator[Issue]:
    available = profile.memory_bytes * TRAINER_SHARE
    if job.spec.accelerator.vendor == "None":
        available /= job.spec.trainer.ranks_per_replica
    for stage in job.spec.stages:
        if not stage.learns:
            continue
        step = trainer_step(job, stage, shape)
        memory = trainer_memory(shape, step)
        if memory.total <= available:
            continue
        field, advice = _trainer_advice(job, stage, shape, step, available)
        adapted = _adapted(job, shape)
        if adapted and trainer_memory(shape, trainer_step(adapted, stage, shape)).total <= available:
            rank = LoRASpec().rank
            advice += f"; or set spec.trainer.lora: an adapter of rank {rank} fits without another change"
        yield Issue(
            field,
            f"stage {stage.name} needs {gigabytes(memory.total)} per rank, a {profile.device} has "
            f"{gigabytes(available)} for it (largest part: {_largest_part(memory)}); {advice}",
            None,
        )


def _adapted(job: AgenticRLJob, shape: ModelShape) -> AgenticRLJob | None:
    """Return the job with an adapter in all stages; None: it has one, or the model or another field forbids it."""
    if job.spec.trainer.lora is not None or not shape.adaptable:
        return None
    trainer = job.spec.trainer.model_copy(update={"lora": LoRASpec()})
    adapted = job.model_copy(update={"spec": job.spec.model_copy(update={"trainer": trainer})})
    return adapted if all(issue.warning for issue in lora_faults(adapted)) else None


def _trainer_advice(
    job: AgenticRLJob, stage: Stage, shape: ModelShape, step: TrainerStep, available: float
) -> tuple[str, str]:
    """Return the field that makes the step fit, and its value: the cheapest change in time first."""

    def fits(**changes: Any) -> bool:
        return trainer_memory(shape, dataclasses.replace(step, **changes)).total <= available

    if fits(checkpointed_layers=shape.layers):
        return "spec.trainer.activationCheckpointing", "set it to Always"
    longest = sequence_tokens(job, stage)
    smaller = [tokens for tokens in range(MICRO_BATCH_STEPS, step.tokens, MICRO_BATCH_STEPS) if tokens >= longest]
    smaller = [tokens for tokens in smaller if fits(checkpointed_layers=shape.layers, tokens=tokens)]
    if smaller:
        return "spec.trainer.tokensPerMicroBatch", f"set it to {max(smaller)} or less"
    if fits(checkpointed_layers=shape.layers, chunk=256):
        return "spec.trainer.logprobChunkTokens", "set it to 256"
    per_replica, tokens = job.spec.trainer.ranks_per_replica, max(longest, MICRO_BATCH_STEPS)
    for replicas in range(job.replicas(stage) + 1, 257):
        if fits(checkpointed_layers=shape.layers, ranks=replicas * per_replica, tokens=min(step.tokens, tokens)):
            return "spec.trainer.replicas", f"set it to {replicas} or more, which divides the states by more ranks"
    if stage.sft is not None:
        return f"spec.stages[{job.spec.stages.index(stage)}].sft.maxTokens", "set a lower limit for a conversation"
    return "spec.accelerator", "no number of ranks suffices: use devices with more memory or a smaller model"


def _engine_misfits(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile) -> Iterator[Issue]:
    longest = longest_sequence(job)
    if not longest:
        return
    memory = engine_of(job, shape, profile, tokens=longest)
    if memory.slots:
        return
    if job.spec.accelerator.vendor == "None":
        needed = round(memory.kv_bytes_per_token * memory.sequence_tokens)
        yield Issue(
            "spec.rollout.engineArgs.kv-cache-memory-bytes",
            f"the KV cache has {memory.kv_tokens:,} tokens, the longest prompt and response has "
            f"{memory.sequence_tokens:,}; set it to {needed} or more",
            None,
        )
        return
    per_gpu = f"an engine needs {gigabytes(memory.weights)} per GPU for its weights"
    if memory.adapters:
        per_gpu += f" and {gigabytes(memory.adapters)} for adapters"
    for parallel in (2, 4, 8, 16):
        if parallel <= job.spec.rollout.tensor_parallel or shape.heads % parallel:
            continue
        rollout = job.spec.rollout.model_copy(update={"tensor_parallel": parallel})
        spec = job.spec.model_copy(update={"rollout": rollout})
        larger = engine_of(job.model_copy(update={"spec": spec}), shape, profile, tokens=longest)
        if larger.slots:
            yield Issue(
                "spec.rollout.tensorParallel",
                f"{per_gpu}; {max(0, memory.kv_tokens):,} tokens of KV cache remain on a {profile.device}, "
                f"{memory.sequence_tokens:,} are needed for one trajectory; set it to {parallel}",
                None,
            )
            return
    yield Issue("spec.accelerator", f"{per_gpu}; use devices with more memory or a smaller model", None)


def _largest_part(memory: TrainerMemory) -> str:
    parts = {
        "weights, gradients and optimiser": memory.states,
        "gathered parameters": memory.gathered,
        "activations": memory.activations,
        "the weights published last": memory.published,
        "the reference policy": memory.reference,
        "logits and gradients": memory.transient,
        "the copy for a checkpoint": memory.snapshot,
    }
    name = max(parts, key=lambda part: parts[part])
    return f"{name}, {gigabytes(parts[name])}"


def gigabytes(value: float) -> str:
    """Return bytes as text in TB, GB or MB."""
    for size, name in ((1e12, "TB"), (1e9, "GB")):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:,.1f} MB"
