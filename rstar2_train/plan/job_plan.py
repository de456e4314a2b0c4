"""The plan of a manifest: `plan_job` is the one function that a command line calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rstar2_train.api.base import amount
from rstar2_train.api.issue import Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.fit import adapter_of, engine_of, gigabytes, longest_sequence, misfits, version_value_bytes
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.memory import snapshot_bytes
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.plan.agent_rows import too_few_programs
from rstar2_train.plan.rollout_time import MEAN_SHARE, TRAINED_SHARE, StageInputs
from rstar2_train.plan.row import Row, duration
from rstar2_train.plan.shared_device import HOST_LINK, SharedDevice
from rstar2_train.plan.split import engine_gpus, total_gpus
from rstar2_train.plan.stage_rows import CALL_PEAK, SFT_TOKENS, TRAJECTORY_BYTES, stage_rows
from rstar2_train.plan.step_time import DELTA_SHARE
from rstar2_train.plan.teacher_rows import teacher_gpus, teacher_misfits
from rstar2_train.simulation.workload import CALLS_PER_TRAJECTORY

SLOW_NETWORK = 1.2
"""Communication / arithmetic above which the network is a warning."""
SLOW_TRANSFER = 0.03
"""Share of a step above which the transfer of weights is a warning."""
BETTER_SPLIT = 0.9
"""Step with the best split / step, below which the split is a warning."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of a job."""

    name: str
    summary: str
    stages: Mapping[str, list[Row]]
    """Stage -> its figures, in the same order for all stages."""
    issues: list[Issue]
    """Errors where the job does not fit, and warnings; each names the field to change."""
    assumptions: list[tuple[str, str]]
    """Assumption and its source."""

    @property
    def fits(self) -> bool:
        """Whether the job fits the hardware."""
        return all(issue.warning for issue in self.issues)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON values; times in seconds, sizes in bytes."""
        return {
            "job": self.name,
            "summary": self.summary,
            "fits": self.fits,
            "stages": {stage: {row.key: row.value for row in rows} for stage, rows in self.stages.items()},
            "issues": [
                {"field": issue.field, "severity": "warning" if issue.warning else "error", "message": issue.message}
                for issue in self.issues
            ],
            "assumptions": [{"assumption": text, "source": source} for text, source in self.assumptions],
        }


def plan_job(
    job: AgenticRLJob,
    shape: ModelShape,
    profile: HardwareProfile,
    *,
    mean_tokens: float | None = None,
    measured: Mapping[str, StageInputs] | None = None,
    shared: SharedDevice | None = None,
) -> JobPlan:
    """Return the plan of a job on a hardware profile.

    Args:
        job: the validated job.
        shape: its model (`capacity.model_shape.read_shape`).
        profile: its hardware (`capacity.hardware_profile.load_profile`).
        mean_tokens: mean of the tokens that a trajectory samples; None: half of maxResponseTokens.
        measured: stage -> figures of a run, instead of the assumptions.
        shared: how trainer and engine use one device; None if each has devices of its own.
    """
    job = shared.engine_job(job) if shared else job
    inputs = measured or {}
    assumed = StageInputs(mean_tokens=mean_tokens)
    issues = [*_unadaptable(job, shape), *misfits(job, shape, profile), *teacher_misfits(job, profile)]
    engines_fit = bool(engine_of(job, shape, profile, tokens=max(1, longest_sequence(job))).slots)
    stages = {
        stage.name: list(stage_rows(job, stage, shape, profile, inputs.get(stage.name, assumed), shared))
        for stage in job.spec.stages
        if engines_fit or not stage.needs_engines
    }
    issues += _warnings(job, shape, stages)
    gpus = total_gpus(job) if job.spec.accelerator.vendor != "None" else 0
    devices = profile.device
    if shared:
        devices = f"1 x {profile.device}, which trainer and engine use {shared.text}"
    elif gpus:
        devices = f"{gpus} x {profile.device}: trainer {gpus - engine_gpus(job)}, engines {engine_gpus(job)}"
        devices += f"; in stages with a teacher {teacher_gpus(job)} more" if teacher_gpus(job) else ""
    seconds = sum(float(row.value) for rows in stages.values() for row in rows if row.key == "stageSeconds")
    return JobPlan(
        name=job.metadata.name,
        summary=f"{shape.name}, {shape.parameters / 1e9:,.3g} billion parameters, on {devices}. "
        f"RL stages: {duration(seconds)}.",
        stages=stages,
        issues=sorted(issues, key=lambda issue: issue.warning),
        assumptions=[*_switch_assumptions(shared), *_assumptions(profile, mean_tokens=mean_tokens, measured=inputs)],
    )


def _unadaptable(job: AgenticRLJob, shape: ModelShape) -> Iterator[Issue]:
    """Yield the adapters of a model that has none. The config.json of a folder is checked before."""
    if not shape.adaptable and any(job.lora(stage) for stage in job.spec.stages):
        yield Issue("spec.model.source", "is not supported with LoRA: remove lora, or use another model", shape.name)


def _warnings(job: AgenticRLJob, shape: ModelShape, stages: Mapping[str, list[Row]]) -> list[Issue]:
    """Return the settings that cost time, and storage that is too small."""
    figures = {name: {row.key: float(row.value) for row in rows if row.unit != "text"} for name, rows in stages.items()}
    warnings = []
    slowest = max(figures, key=lambda name: figures[name].get("linkSeconds", 0.0), default="")
    link, compute = (figures.get(slowest, {}).get(key, 0.0) for key in ("linkSeconds", "computeSeconds"))
    if link > SLOW_NETWORK * compute and job.spec.accelerator.vendor != "None":
        has_rdma = job.spec.accelerator.rdma is not None
        field = "spec.trainer.tokensPerMicroBatch" if has_rdma else "spec.accelerator.rdma"
        advice = "set more tokens per micro-batch" if has_rdma else "give the trainer pods RDMA devices"
        message = (
            f"stage {slowest}: an update takes {duration(link)} because of its communication; its arithmetic takes "
            f"{duration(compute)}; {advice}"
        )
        warnings.append(Issue(field, message, None, warning=True))
    warnings += _slow_transfer(job, figures)
    if job.spec.rollout.weight_transport == "Collective":
        message = "this transport is experimental: it never ran on GPUs; Auto selects Delta or Folder"
        warnings.append(Issue("spec.rollout.weightTransport", message, "Collective", warning=True))
    warnings += _better_split(job, stages)
    executors = max((values.get("executorsNeeded", 0.0) for values in figures.values()), default=0.0)
    if executors > job.spec.executor.replicas:
        message = f"{executors:,.0f} executors are needed at the peak of the calls"
        warnings.append(Issue("spec.executor.replicas", message, job.spec.executor.replicas, warning=True))
    warnings += too_few_programs(job)
    size, checkpoint = job.spec.storage.size, job.spec.checkpoint
    learning = [stage for stage in job.spec.stages if stage.learns]
    per_stage = checkpoint.keep_last + checkpoint.keep_best
    kept = len(learning) * per_stage
    sizes = (snapshot_bytes(shape, ranks=1, adapter=adapter_of(job, stage, shape)) for stage in learning)
    versions = 2 * shape.parameters * version_value_bytes(job, stored=shape.stored_bytes)
    needed = per_stage * sum(sizes) + versions
    if size is not None and needed > float(amount(size)):
        message = f"{kept} checkpoints and two weight versions have {gigabytes(needed)}"
        warnings.append(Issue("spec.storage.size", message, size, warning=True))
    return warnings


def _slow_transfer(job: AgenticRLJob, figures: Mapping[str, Mapping[str, float]]) -> list[Issue]:
    """Return a warning if a Folder transfer takes a visible share of a step."""
    for stage, values in figures.items():
        transfer, step = values.get("transferSeconds", 0.0), values.get("stepSeconds", 1.0)
        if transfer > SLOW_TRANSFER * step and job.spec.rollout.weight_transport == "Folder":
            message = (
                f"stage {stage}: the weights take {duration(transfer)} of a step of {duration(step)}; set it to Auto"
            )
            return [Issue("spec.rollout.weightTransport", message, "Folder", warning=True)]
    return []


def _better_split(job: AgenticRLJob, stages: Mapping[str, list[Row]]) -> list[Issue]:
    """Return a warning for the stage that gains most from another division of the GPUs."""
    gains = []
    for stage, rows in stages.items():
        by_key = {row.key: row for row in rows}
        stale = "staleStepSeconds" in by_key and job.grpo_settings(job.stage(stage)).max_staleness > 0
        best = by_key.get("staleSplit" if stale else "synchronousSplit")
        if best is not None:
            now = float(by_key["staleStepSeconds" if stale else "stepSeconds"].value)
            gains.append((best.seconds / now, stage, best.text, now))
    if not gains or min(gains)[0] > BETTER_SPLIT:
        return []
    _, stage, text, now = min(gains)
    message = f"stage {stage} takes {duration(now)} per step; with trainer / engines as {text}"
    return [Issue("spec.trainer.replicas", message, job.spec.trainer.replicas, warning=True)]


def _switch_assumptions(shared: SharedDevice | None) -> list[tuple[str, str]]:
    if shared is None or not shared.time_shared:
        return []
    rate = f"{HOST_LINK / 1e9:.0f} GB/s"
    return [(f"memory moves between host and device at {rate} at each switch", "assumption, for PCIe 5 with 16 lanes")]


def _assumptions(
    profile: HardwareProfile, *, mean_tokens: float | None, measured: Mapping[str, StageInputs]
) -> list[tuple[str, str]]:
    mean = (
        (f"a trajectory samples {mean_tokens:,.0f} tokens on average", "--mean-tokens")
        if mean_tokens
        else (
            f"a trajectory samples {MEAN_SHARE:.0%} of maxResponseTokens on average, log-normal, cut at the budget",
            "assumption: the paper gives no lengths; set --mean-tokens",
        )
    )
    figures = profile.model_dump(by_alias=True)
    of_run = (
        [(f"lengths, calls and trained groups of {', '.join(measured)}", "measured in the run")] if measured else []
    )
    return [
        *of_run,
        mean,
        (f"{CALLS_PER_TRAJECTORY:.2f} calls per trajectory", "paper §3.1: 45,000 calls of 16,384 rollouts"),
        (f"{TRAINED_SHARE:.0%} of the groups train, all their kept rollouts", "assumption from paper §4.3"),
        (f"a conversation of SFT has {SFT_TOKENS:,} tokens", "paper, Table 2: about 1K"),
        (f"calls per second at the peak are {CALL_PEAK:.0f} times the mean", "assumption"),
        (f"Delta writes {DELTA_SHARE:.0%} of the weights per version", "docs/weights.md"),
        (f"a stored trajectory has {TRAJECTORY_BYTES} bytes per token", "assumption"),
        ("the memory of a step, within 15 %", "bench/results/memory.json, measured on the CPU in float32"),
        *(
            (f"{profile.device}: {name} = {figures[name]:.4g}", source)
            for name, source in profile.sources.items()
            if name in figures
        ),
    ]
