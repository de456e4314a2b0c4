"""The figures of a run on this machine: inputs of a plan, and a hardware profile that is fitted to its first RL stage.

    track/journal.jsonl -> read_figures -> fit_profile (first GRPO stage, first SFT stage) -> plan_job
                                 `-------> rows with the measured step of every stage, to compare

The other stages are predictions: only the lengths of their sequences and the share of their trained groups are taken
from the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.plan.rollout_time import Lengths, StageInputs, engine_hardware, rollout_seconds, trained_lengths
from rstar2_train.plan.step_time import update_time
from rstar2_train.tracking.journal import read_entries
from rstar2_train.tracking.tracker import journal_file

LEAST_STEPS = 3
"""Steps of a stage below which its figures are not used."""
FITS = 6
"""Rounds of the fit of an engine's costs."""
MIN_CALL_SECONDS = 1e-4
"""Shortest run time of a call in a profile."""


class NoFigures(ValueError):
    """A run has no figures to plan with. The message names the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """Medians over the steps of a GRPO stage."""

    steps: int
    step_seconds: float
    rollout_seconds: float
    update_seconds: float
    mean_tokens: float
    """Sampled tokens per trajectory."""
    trained_share: float
    """Groups that train / groups."""
    calls: float
    """Calls per trajectory."""
    call_seconds: float
    """Run time of a call in its sandbox."""
    queue_seconds: float
    """Time that a call waits for a sandbox."""

    @property
    def inputs(self) -> StageInputs:
        """The figures that a plan takes from a run."""
        return StageInputs(
            mean_tokens=self.mean_tokens,
            trained_share=self.trained_share,
            calls=self.calls,
            step_seconds=self.step_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTFigures:
    """Medians over the steps of an SFT stage."""

    step_seconds: float
    conversation_tokens: float
    """Tokens per conversation."""

    @property
    def inputs(self) -> StageInputs:
        """The figures that a plan takes from a run."""
        return StageInputs(conversation_tokens=self.conversation_tokens, step_seconds=self.step_seconds)


def read_sft_figures(state: JobState, job: AgenticRLJob) -> dict[str, SFTFigures]:
    """Return the figures of each SFT stage with at least three steps."""
    values = _read_values(state)
    figures = {}
    for stage in job.spec.stages:
        seconds = values[stage.name]["sft/seconds"]
        if stage.type == "SFT" and len(seconds) >= LEAST_STEPS:
            middle = median(seconds)
            tokens = median(values[stage.name]["sft/tokens_per_second"]) * middle
            sequences = median(values[stage.name]["sft/sequences"])
            figures[stage.name] = SFTFigures(step_seconds=middle, conversation_tokens=tokens / sequences)
    return figures


def _read_values(state: JobState) -> dict[str, dict[str, list[float]]]:
    """Return the values of each metric of each run in the journal."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in read_entries(journal_file(state.root)):
        if entry.event is not None and entry.event.get("kind") == "metrics":
            for name, value in entry.event["values"].items():
                values[entry.event["run"]][name].append(float(value))
    return values


def read_figures(state: JobState, job: AgenticRLJob) -> dict[str, StageFigures]:
    """Return the figures of each GRPO stage with at least three steps. Raises NoFigures if there is none."""
    values = _read_values(state)
    figures = {
        stage.name: _figures(job, stage, values[stage.name])
        for stage in job.spec.stages
        if stage.type == "GRPO" and len(values[stage.name]["time/step_seconds"]) >= LEAST_STEPS
    }
    if not figures:
        raise NoFigures(f"{state.root} has no GRPO stage with {LEAST_STEPS} steps: run the job first (rstar2 run)")
    return figures


def fit_profile(
    job: AgenticRLJob,
    shape: ModelShape,
    profile: HardwareProfile,
    figures: Mapping[str, StageFigures],
    sft: Mapping[str, SFTFigures] | None = None,
) -> HardwareProfile:
    """Return the profile whose update and rollouts last as long as those of the first stage with figures.

    With the figures of an SFT stage, the fixed seconds of an update are fitted too, from its other number of tokens.
    """
    stage = next(stage for stage in job.spec.stages if stage.name in figures)
    measured, settings = figures[stage.name], job.grpo_settings(stage)
    lengths = Lengths.from_settings(settings, measured.inputs)
    drawn = lengths.draw(prompts=settings.prompts_per_step, samples=settings.rollouts_per_prompt, seed=0)
    trained = trained_lengths(drawn, settings, trained_share=measured.trained_share)
    fitted = profile.model_copy(
        update={
            "micro_batch_seconds": 0.0,
            "update_seconds": 0.0,
            "call_cpu_seconds": max(MIN_CALL_SECONDS, _call_seconds(job, stage, measured)),
        }
    )
    planned = update_time(job, stage, shape, fitted, trained).compute
    factor, fixed = measured.update_seconds / planned, 0.0
    other = next(((stage, sft[stage.name]) for stage in job.spec.stages if sft and stage.name in sft), None)
    if other is not None and other[0].sft is not None:
        batch = [round(other[1].conversation_tokens)] * other[0].sft.batch_size
        planned_sft = update_time(job, other[0], shape, fitted, batch).compute
        factor, fixed = _fit_line(
            (planned, settings.updates_per_step, measured.update_seconds), (planned_sft, 1, other[1].step_seconds)
        )
    fitted = fitted.model_copy(update={"train_flops": fitted.train_flops / factor, "update_seconds": fixed})
    for _ in range(FITS):
        simulated, _, _ = rollout_seconds(
            job, stage, engine_hardware(job, shape, fitted), lengths, engines=job.spec.rollout.replicas
        )
        factor = measured.rollout_seconds / simulated
        fitted = fitted.model_copy(
            update={
                "launch_seconds": fitted.launch_seconds * factor,
                "bandwidth": fitted.bandwidth / factor,
                "engine_flops": fitted.engine_flops / factor,
            }
        )
    source = f"fitted to {measured.steps} steps of stage {stage.name} of job {job.metadata.name} on this machine"
    names = ("trainFlops", "updateSeconds", "launchSeconds", "bandwidth", "engineFlops", "callCpuSeconds")
    sources = profile.sources | dict.fromkeys(names, source)
    return fitted.model_copy(update={"device": f"{profile.device}, measured", "sources": sources})


def _call_seconds(job: AgenticRLJob, stage: Stage, measured: StageFigures) -> float:
    """Return the seconds that a call occupies its executor.

    A call that waits longer than it runs waits for busy executors: they determine the seconds of the rollouts, and the
    time between two calls of an executor counts too.
    """
    if measured.queue_seconds <= measured.call_seconds or not measured.calls:
        return measured.call_seconds
    settings = job.grpo_settings(stage)
    calls = settings.prompts_per_step * settings.rollouts_per_prompt * measured.calls
    return measured.rollout_seconds * job.spec.executor.replicas / calls


def _fit_line(first: tuple[float, int, float], second: tuple[float, int, float]) -> tuple[float, float]:
    """Return (factor, fixed) with seconds = factor x planned + fixed x updates for both (planned, updates, seconds).

    Where they would be negative, which noise can cause, `fixed` is 0 and the factor that of the first.
    """
    planned, updates, seconds = first
    planned_2, updates_2, seconds_2 = second
    determinant = planned * updates_2 - planned_2 * updates
    if determinant:
        factor = (seconds * updates_2 - seconds_2 * updates) / determinant
        fixed = (planned * seconds_2 - planned_2 * seconds) / determinant
        if factor > 0 and fixed >= 0:
            return factor, fixed
    return seconds / planned, 0.0


def _figures(job: AgenticRLJob, stage: Stage, values: Mapping[str, list[float]]) -> StageFigures:
    def middle(name: str) -> float:
        return median(values.get(name) or [0.0])

    settings = job.grpo_settings(stage)
    trajectories = settings.prompts_per_step * settings.rollouts_per_prompt
    rollouts = middle("time/rollout_seconds")
    sequences = middle("trainer/sequences")
    return StageFigures(
        steps=len(values["time/step_seconds"]),
        step_seconds=middle("time/step_seconds"),
        rollout_seconds=rollouts,
        update_seconds=middle("time/update_seconds"),
        mean_tokens=middle("rollout/tokens_per_second") * rollouts / trajectories,
        trained_share=min(1.0, sequences / settings.keep_per_prompt / settings.prompts_per_step),
        calls=middle("tools/calls_per_trajectory"),
        call_seconds=middle("tools/latency_mean_seconds") - middle("tools/queue_mean_seconds"),
        queue_seconds=middle("tools/queue_mean_seconds"),
    )
