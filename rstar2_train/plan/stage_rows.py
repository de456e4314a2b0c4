"""The rows of one stage: memory of a trainer rank and of an engine, the parts of a step, traffic, judge, storage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.capacity.adapter_slots import adapter_slots
from rstar2_train.capacity.fit import adapter_of, chosen_step, engine_of, gigabytes, ranks_of, sequence_tokens
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import TrainerStep, snapshot_bytes, trained_parameters, trainer_memory
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.capacity.rollout_processes import (
    PROCESS_BYTES,
    TOKEN_BYTES,
    TRAJECTORIES_PER_PROCESS,
    most_concurrent,
    process_bytes,
    process_count,
)
from rstar2_train.plan.agent_rows import agent_rows
from rstar2_train.plan.rollout_time import Lengths, StageInputs, engine_hardware, rollout_seconds, trained_lengths
from rstar2_train.plan.row import Row, duration
from rstar2_train.plan.shared_device import SharedDevice, shared_rows, switch_row, turn_memory
from rstar2_train.plan.split import Split, compare_splits
from rstar2_train.plan.step_time import (
    TransferTime,
    UpdateTime,
    transfer_time,
    update_time,
)
from rstar2_train.plan.teacher_rows import teacher_rows

SFT_TOKENS = 1000
"""Mean tokens of a conversation (paper, Table 2: about 1K)."""
TRAJECTORY_BYTES = 10
"""Bytes per token of a stored trajectory: ids, log-probabilities, versions; compressed."""
CALL_PEAK = 3.0
"""Calls per second at the peak / mean."""
EXECUTOR_LOAD = 0.8
"""Share of the time that an executor may be busy at the peak."""


def stage_rows(
    job: AgenticRLJob,
    stage: Stage,
    shape: ModelShape,
    profile: HardwareProfile,
    inputs: StageInputs,
    shared: SharedDevice | None = None,
) -> Iterator[Row]:
    """Yield the rows of a stage. `shared`: None if trainer and engines have devices of their own."""
    trainer_profile = profile
    if shared is not None:
        job, trainer_profile = shared.engine_job(job), shared.trainer_profile(profile)
    if stage.learns:
        yield from _trainer_rows(job, stage, shape, trainer_profile, of="its share" if shared else "the device")
    if stage.needs_engines:
        yield from _engine_rows(job, stage, shape, profile)
        yield from agent_rows(job, stage)
    if stage.type == "GRPO":
        yield from _grpo_rows(job, stage, shape, profile, inputs, shared)
    elif stage.sft is not None:
        tokens = round(inputs.conversation_tokens or min(SFT_TOKENS, stage.sft.max_tokens))
        update = update_time(job, stage, shape, trainer_profile, [tokens] * stage.sft.batch_size)
        yield from _update_rows(update, profile)
        conversations = f"{stage.sft.batch_size} conversations of {tokens:,} tokens"
        yield Row("Step", "stepSeconds", "step, synchronous", "seconds", update.seconds, conversations)
        yield from _measured_rows(inputs, update.seconds)
        yield from _checkpoint_rows(job, stage, shape, profile)


def _trainer_rows(
    job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile, *, of: str
) -> Iterator[Row]:
    step = chosen_step(job, stage, shape, profile)
    memory = trainer_memory(shape, step)
    section, parameters = "Trainer, per rank", f"{shape.parameters:,} parameters"
    available = profile.memory_bytes
    if job.spec.accelerator.vendor == "None":
        available /= job.spec.trainer.ranks_per_replica
    yield Row(section, "ranks", "ranks", "count", ranks_of(job, stage), f"{job.replicas(stage)} pods x ranks per pod")
    weights, of_weights, trained = "weights (float32)", f"4 x {parameters} / {step.ranks}", parameters
    if step.adapter is not None:
        trained = f"{step.adapter.parameters:,} parameters of the adapter"
        weights = "weights (frozen), adapter (float32)"
        of_weights = f"({step.value_bytes} x {parameters} + 4 x {trained}) / {step.ranks}"
    of_optimizer = f"8 x {trained} / {step.ranks}"
    if step.offload:
        of_weights = of_optimizer = "in host memory, because of trainer.offload"
    yield Row(section, "weights", weights, "bytes", memory.weights, of_weights)
    yield Row(section, "gradients", "gradients", "bytes", memory.gradients, _gradients(trained, step))
    yield Row(section, "optimizer", "optimiser (AdamW)", "bytes", memory.optimizer, of_optimizer)
    yield Row(
        *(section, "gathered", "gathered parameters", "bytes", memory.gathered),
        f"{step.value_bytes} bytes x ({shape.root_parameters:,} parameters of embedding and projection, and the layers "
        f"in progress with {shape.layer_parameters:,} each)",
    )
    yield Row(
        *(section, "activations", "activations", "bytes", memory.activations),
        f"{step.tokens:,} tokens x {shape.layers} layers, {step.checkpointed_layers} of them with their input only",
    )
    if step.published:
        base = f"{step.value_bytes} x {parameters} / {step.ranks}: the base of the changes that Delta writes"
        yield Row(section, "publishedWeights", "weights published last", "bytes", memory.published, base)
    if step.reference is not None:
        base = f"{step.value_bytes} x {step.reference.parameters:,} parameters / {step.ranks}: {_reference(job, stage)}"
        yield Row(section, "referenceWeights", "weights of the frozen policy", "bytes", memory.reference, base)
    yield Row(
        *(section, "transient", "logits, layer gradients", "bytes", memory.transient),
        f"largest at: {memory.moment}; {min(step.chunk, step.tokens):,} tokens x {shape.vocabulary:,} logits",
    )
    copy = f"12 x {trained} / {step.ranks}: weights and moments, from which a checkpoint is written during training"
    if step.snapshot_on_device:
        yield Row(section, "checkpointCopy", "copy for a checkpoint", "bytes", memory.snapshot, copy)
    yield Row(section, "trainerTotal", "total", "bytes", memory.total, "sum of the rows above")
    yield Row(
        *(section, "trainerShare", f"of {of}", "share", memory.total / available),
        f"{gigabytes(memory.total)} / {gigabytes(available)}",
    )
    if not step.snapshot_on_device:
        size = snapshot_bytes(shape, ranks=step.ranks, adapter=step.adapter)
        yield Row(section, "checkpointCopy", "host: copy for a checkpoint", "bytes", size, copy)
    if step.offload:
        states = "weights, gradients and moments of the rank; the seconds of an update do not count their copies"
        yield Row(section, "offloaded", "host: trainer.offload", "bytes", memory.offloaded, states)


def _reference(job: AgenticRLJob, stage: Stage) -> str:
    teacher = job.grpo_settings(stage).objective.teacher
    return "grpo.referenceKl" if teacher is None else "the teacher of grpo.objective"


def _gradients(parameters: str, step: TrainerStep) -> str:
    shards = "in host memory" if step.offload else f"4 x {parameters} / {step.ranks}"
    return shards + (", and 4 x all of them until the reduction" if step.reduce_once else "")


def _engine_rows(job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile) -> Iterator[Row]:
    longest = sequence_tokens(job, stage)
    memory = engine_of(job, shape, profile, tokens=longest)
    section, limit = "Engine, per device", job.spec.rollout.admission.max_in_flight
    yield Row(
        *(section, "engineWeights", "weights", "bytes", memory.weights),
        f"{shape.parameters:,} parameters / tensorParallel {job.spec.rollout.tensor_parallel}",
    )
    if (slots := adapter_slots(job)) is not None:
        formula = f"{slots.count} of rank {slots.rank}: largest maxStaleness + 2, for all linear layers"
        yield Row(section, "engineAdapters", "slots for adapters", "bytes", memory.adapters, formula)
    yield Row(
        *(section, "kvCache", "KV cache", "bytes", memory.kv_cache),
        "memory for the engine - weights - slots for adapters - activations and graphs",
    )
    yield Row(
        *(section, "kvTokens", "KV cache, tokens per engine", "count", memory.kv_tokens),
        f"{memory.kv_bytes_per_token:,.0f} bytes per token and device",
    )
    yield Row(
        *(section, "slots", "slots per engine", "count", min(memory.slots, limit)),
        f"min({memory.kv_tokens:,} tokens / {memory.sequence_tokens:,} of prompt and budget, maxInFlight {limit})",
    )


def _grpo_rows(
    job: AgenticRLJob,
    stage: Stage,
    shape: ModelShape,
    profile: HardwareProfile,
    inputs: StageInputs,
    shared: SharedDevice | None,
) -> Iterator[Row]:
    settings = job.grpo_settings(stage)
    lengths, hardware = Lengths.from_settings(settings, inputs), engine_hardware(job, shape, profile)
    engines = job.spec.rollout.replicas
    drawn = lengths.draw(prompts=settings.prompts_per_step, samples=settings.rollouts_per_prompt, seed=0)
    trained = trained_lengths(drawn, settings, trained_share=inputs.trained_share)
    update = update_time(job, stage, shape, shared.trainer_profile(profile) if shared else profile, trained)
    turns = turn_memory(job, stage, shape, profile, shared) if shared else None
    transfer = transfer_time(job, stage, shape, profile, engines=engines)
    simulated, idle, tail = rollout_seconds(job, stage, hardware, lengths, engines=engines)
    calls, larger = 0.0, ""
    if job.spec.needs_judge:
        calls = len(drawn) * inputs.calls * profile.call_cpu_seconds / job.spec.executor.replicas
        larger = f"the larger of {duration(calls)} of calls per executor and "
    rollouts = max(simulated, calls)
    if turns is not None and shared is not None:
        yield from shared_rows(turns, shared)
    yield from teacher_rows(job, stage, profile, trained)
    yield from _update_rows(update, profile)
    sampled = sum(trajectory.sampled for trajectory in drawn)
    step = rollouts + update.seconds + transfer.seconds + (turns.seconds if turns else 0.0)
    yield Row(
        *("Step", "rollouts", "trajectories", "count", len(drawn)),
        f"{settings.prompts_per_step} prompts x {settings.rollouts_per_prompt}",
    )
    yield Row("Step", "sampledTokens", "sampled tokens", "count", sampled, f"mean {sampled / len(drawn):,.0f}")
    yield Row(
        *("Step", "rolloutSeconds", "rollouts", "seconds", rollouts),
        f"{larger}{duration(simulated)}, simulated with admission "
        f"{job.spec.rollout.admission.policy}; a decode step takes "
        f"{hardware.step_seconds:.3g} s + {hardware.sequence_seconds:.3g} s per sequence + "
        f"{hardware.token_seconds:.3g} s per cached token",
    )
    yield Row("Step", "tailSeconds", "of which tail", "seconds", tail, "from the start of the last trajectory")
    yield Row("Step", "updateSeconds", "update", "seconds", update.seconds, "max(arithmetic, communication)")
    yield Row("Step", "transferSeconds", "weights to engines", "seconds", transfer.seconds, _transfer_text(transfer))
    if turns is not None and turns.moved:
        yield switch_row(turns)
    parts = "rollouts + update + weights" + " + turns" * bool(turns and turns.moved)
    yield Row("Step", "stepSeconds", "step, synchronous", "seconds", step, parts)
    stale = step
    if turns is None:
        stale, _, _ = rollout_seconds(
            *(job, stage, hardware, lengths),
            engines=engines,
            max_staleness=1,
            update_seconds=update.seconds + transfer.seconds,
        )
        stale = max(stale, calls)
        yield Row(
            *("Step", "staleStepSeconds", "step, maxStaleness 1", "seconds", stale),
            f"simulated: rollouts continue during the update ({duration(step)} -> {duration(stale)})",
        )
    yield from _process_rows(job, stage, tokens=settings.max_prompt_tokens + sampled / len(drawn))
    now = step if settings.max_staleness == 0 else stale
    yield Row(
        *("Step", "trainerIdle", "trainer idle", "share", max(0.0, 1 - update.seconds / now)),
        f"1 - {duration(update.seconds)} / {duration(now)}",
    )
    yield Row(
        *("Step", "engineIdle", "engines idle", "share", max(0.0, 1 - rollouts * (1 - idle) / now)),
        f"1 - {duration(rollouts)} x {1 - idle:.2f} / {duration(now)}",
    )
    yield Row(
        *("Step", "stageSeconds", "stage", "seconds", settings.steps * now),
        f"{settings.steps} steps x {duration(now)}",
    )
    yield from _measured_rows(inputs, now)
    if shared is None:
        yield from _split_rows(job, compare_splits(job, stage, shape, profile, lengths, trained))
    yield from _traffic_rows(transfer, engines=engines)
    if job.spec.needs_judge:
        yield from _judge_rows(job, profile, trajectories=len(drawn), per_trajectory=inputs.calls, seconds=rollouts)
    yield from _checkpoint_rows(job, stage, shape, profile)
    yield Row(
        *("Storage", "trajectoryBytes", "trajectories per step", "bytes"),
        float(TRAJECTORY_BYTES * sum(trajectory.prompt_tokens + trajectory.length for trajectory in drawn)),
        f"{TRAJECTORY_BYTES} bytes per token",
    )


def _split_rows(job: AgenticRLJob, splits: Sequence[Split]) -> Iterator[Row]:
    """Yield the best split of the GPUs by the time of a step, and by that of a step with maxStaleness 1."""
    if not splits:
        return
    for key, label in (("synchronous", "best split"), ("stale", "best split, maxStaleness 1")):
        best = min(splits, key=lambda split: getattr(split, key))
        compared = (f"{split.trainer_replicas}/{split.engines} {duration(getattr(split, key))}" for split in splits)
        yield Row(
            *("Step", f"{key}Split", label, "text"),
            f"{best.trainer_replicas} x {job.spec.trainer.gpus_per_replica} / "
            f"{best.engines} x {job.spec.rollout.tensor_parallel}: {duration(getattr(best, key))}",
            f"trainer pods / engines; compared: {', '.join(compared)}",
            seconds=getattr(best, key),
        )


def _process_rows(job: AgenticRLJob, stage: Stage, *, tokens: float) -> Iterator[Row]:
    most = most_concurrent(job, stage)
    count = process_count(job.spec.rollout.workers, trajectories=most)
    yield Row(
        *("Rollout processes", "rolloutProcesses", "processes in the first trainer pod", "count", count),
        f"spec.rollout.workers; default: one per {TRAJECTORIES_PER_PROCESS:,} of {most:,} concurrent trajectories",
    )
    yield Row(
        *("Rollout processes", "rolloutProcessBytes", "host memory of each", "bytes"),
        process_bytes(most / count, tokens=tokens),
        f"{PROCESS_BYTES / 1e6:.0f} MB + {most / count:,.0f} trajectories x {tokens:,.0f} tokens x {TOKEN_BYTES} bytes",
    )


def _measured_rows(inputs: StageInputs, planned: float) -> Iterator[Row]:
    if inputs.step_seconds is not None:
        yield Row(
            *("Step", "measuredStepSeconds", "step, measured", "seconds", inputs.step_seconds),
            f"median; the plan differs by {planned / inputs.step_seconds - 1:+.0%}",
        )


def _update_rows(update: UpdateTime, profile: HardwareProfile) -> Iterator[Row]:
    yield Row(
        *("Update", "trainedTokens", "trained sequences, tokens", "count", update.tokens),
        "of all ranks, prompts included",
    )
    yield Row(
        *("Update", "microBatches", "micro-batches per rank", "count", update.micro_batches),
        f"tokensPerMicroBatch filled to {update.fill:.0%}",
    )
    yield Row(
        *("Update", "computeSeconds", "arithmetic", "seconds", update.compute),
        f"{update.flops:.3g} operations per rank / {profile.train_flops:.3g} per second",
    )
    yield Row(
        *("Update", "linkBytes", "sent per node", "bytes", update.link_bytes),
        f"{update.micro_batches} micro-batches: two gathers of the weights, one reduction of the gradients",
    )
    yield Row(
        *("Update", "linkSeconds", "communication", "seconds", update.communication),
        f"{gigabytes(update.link_bytes)} / {gigabytes(update.link_rate)} per second ({update.link_name})",
    )


def _transfer_text(transfer: TransferTime) -> str:
    if transfer.sent:
        return f"{transfer.transport}: {gigabytes(transfer.sent)} over the network"
    return (
        f"{transfer.transport}: {gigabytes(transfer.written)} written, {gigabytes(transfer.read)} read by the engines"
    )


def _traffic_rows(transfer: TransferTime, *, engines: int) -> Iterator[Row]:
    yield Row("Storage", "weightsWritten", "weights written per step", "bytes", transfer.written, transfer.transport)
    readers = "trainer rank 0" if transfer.sent else f"{engines} engines"
    yield Row("Storage", "weightsRead", "weights read per step", "bytes", transfer.read, readers)


def _judge_rows(
    job: AgenticRLJob, profile: HardwareProfile, *, trajectories: int, per_trajectory: float, seconds: float
) -> Iterator[Row]:
    calls = trajectories * per_trajectory
    rate = calls / seconds
    executors = math.ceil(CALL_PEAK * rate * profile.call_cpu_seconds / EXECUTOR_LOAD)
    yield Row(
        *("Judge", "calls", "calls per step", "count", calls),
        f"{per_trajectory:.2f} per trajectory",
    )
    yield Row("Judge", "callRate", "calls per second", "count", rate, f"{calls:,.0f} / {duration(seconds)}")
    yield Row(
        *("Judge", "executorsNeeded", "executors needed", "count", executors),
        f"peak {CALL_PEAK:.0f} x {rate:.1f} per second x {profile.call_cpu_seconds} CPU s / {EXECUTOR_LOAD}",
    )
    yield Row(
        *("Judge", "executors", "executors in the manifest", "count", job.spec.executor.replicas),
        f"spec.executor.replicas, {job.spec.executor.cpu} CPU each",
    )


def _checkpoint_rows(job: AgenticRLJob, stage: Stage, shape: ModelShape, profile: HardwareProfile) -> Iterator[Row]:
    adapter = adapter_of(job, stage, shape)
    size, trained = snapshot_bytes(shape, ranks=1, adapter=adapter), trained_parameters(shape, adapter)
    yield Row("Storage", "checkpointBytes", "checkpoint", "bytes", size, f"12 bytes x {trained:,} trained parameters")
    yield Row(
        *("Storage", "checkpointSeconds", "write of a checkpoint", "seconds", size / profile.storage),
        f"every {job.spec.checkpoint.every_steps} steps, while training continues",
    )
