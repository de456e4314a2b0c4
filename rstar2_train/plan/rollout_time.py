"""Seconds of the rollouts of a step: the simulator, with the scheduler of the rollouts, on engines of a profile.

A simulation of a few engines with their share of the prompts replaces that of all engines: the scheduler gives every
engine the same work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import GRPOSettings, Stage
from rstar2_train.capacity.fit import engine_of, longest_sequence
from rstar2_train.capacity.hardware_profile import HardwareProfile
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.inference.policies import Graded, PolicyName, make_policy
from rstar2_train.simulation.hardware import Hardware
from rstar2_train.simulation.run import SimulationResult, simulate
from rstar2_train.simulation.workload import (
    CALLS_PER_TRAJECTORY,
    LengthStatistics,
    SimulatedTrajectory,
    SimulatedTurn,
    draw_step,
)

SIMULATED_ENGINES = 4
"""Most engines of one simulation."""
OBSERVE_SECONDS = 30.0
"""Interval of the reports and forecasts of a simulation: with 5 s a plan takes twice as long."""
PIPELINE_STEPS = 4
"""Simulated steps with maxStaleness above 0; the first one fills the pipeline."""
MEAN_SHARE = 0.5
"""Mean sampled tokens of a trajectory as a share of maxResponseTokens, without a measured figure."""
TRAINED_SHARE = 0.7
"""Share of the groups that train: the others have equal rewards (paper §4.3: at the end of stage 2 over 70 % of the
problems are always solved; fewer before)."""
PROMPT_SHARE = 0.6
"""Largest mean prompt as a share of maxPromptTokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInputs:
    """Figures of a stage that no manifest has: assumed, or measured in a run."""

    mean_tokens: float | None = None
    """Mean sampled tokens per trajectory; None: half of maxResponseTokens."""
    trained_share: float = TRAINED_SHARE
    """Groups that train / groups."""
    calls: float = CALLS_PER_TRAJECTORY
    """Calls per trajectory."""
    conversation_tokens: float | None = None
    """Tokens per conversation of an SFT stage; None: not measured."""
    step_seconds: float | None = None
    """Measured seconds of a step, to compare; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of a stage's trajectories."""

    budget: int
    mean: float
    prompt_limit: int
    max_turns: int
    calls: float
    """Calls per trajectory; they scale the time that a trajectory waits for its tool."""

    @classmethod
    def from_settings(cls, settings: GRPOSettings, inputs: StageInputs) -> Lengths:
        """Return the lengths of a GRPO stage."""
        return cls(
            budget=settings.max_response_tokens,
            mean=inputs.mean_tokens or MEAN_SHARE * settings.max_response_tokens,
            prompt_limit=settings.max_prompt_tokens,
            max_turns=settings.max_turns,
            calls=inputs.calls,
        )

    def draw(self, *, prompts: int, samples: int, seed: int, first: int = 0) -> list[SimulatedTrajectory]:
        """Return the trajectories of a step, all samples of a prompt in a row."""
        statistics = LengthStatistics(self.budget, self.mean, max_turns=self.max_turns)
        drawn = draw_step(statistics, prompts=prompts, samples=samples, seed=seed, first=first)
        limit = max(1, round(PROMPT_SHARE * self.prompt_limit))
        # A drawn turn has at least 16 tokens, too many for trajectories of a few dozen.
        factor = min(1.0, self.mean * len(drawn) / sum(trajectory.sampled for trajectory in drawn))
        return [self._fitted(trajectory, limit, factor) for trajectory in drawn]

    def _fitted(self, drawn: SimulatedTrajectory, limit: int, factor: float) -> SimulatedTrajectory:
        turns = tuple(
            SimulatedTurn(
                max(1, round(turn.tokens * factor)),
                turn.tool_tokens,
                turn.tool_seconds * self.calls / CALLS_PER_TRAJECTORY,
            )
            for turn in drawn.turns
        )
        return dataclasses.replace(drawn, prompt_tokens=min(drawn.prompt_tokens, limit), turns=turns)


def trained_lengths(drawn: Sequence[SimulatedTrajectory], settings: GRPOSettings, *, trained_share: float) -> list[int]:
    """Return the lengths of the sequences that train: those kept of the groups whose rewards differ."""
    samples = settings.rollouts_per_prompt
    groups = round(trained_share * settings.prompts_per_step) or 1
    kept = (
        drawn[group * samples + at] for group in range(groups) for at in range(min(samples, settings.keep_per_prompt))
    )
    return [trajectory.prompt_tokens + trajectory.length for trajectory in kept]


def engine_hardware(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile) -> Hardware:
    """Return the cost model of one engine of the job. Raises ValueError if no trajectory fits into its KV cache."""
    memory = engine_of(job, shape, profile, tokens=longest_sequence(job))
    if not memory.slots:
        raise ValueError("no trajectory fits into the KV cache of an engine")
    rollout = job.spec.rollout
    size = memory.weights * rollout.tensor_parallel / shape.parameters
    bandwidth = rollout.tensor_parallel * profile.bandwidth
    flops = rollout.tensor_parallel * profile.engine_flops
    token_flops = 2 * shape.active_parameters
    sequences = rollout.engine_args.get("max-num-seqs", rollout.admission.max_in_flight)
    return Hardware(
        step_seconds=profile.launch_seconds + size * shape.matrix_parameters / bandwidth,
        sequence_seconds=token_flops / flops,
        token_seconds=shape.kv_bytes_per_token(round(size)) / bandwidth,
        prefill_seconds=token_flops / flops,
        kv_tokens=memory.kv_tokens,
        max_sequences=min(int(sequences), rollout.admission.max_in_flight),
    )


@lru_cache(maxsize=64)
def simulate_rollouts(
    hardware: Hardware,
    lengths: Lengths,
    *,
    prompts: int,
    samples: int,
    engines: int,
    policy: PolicyName,
    max_in_flight: int,
    max_staleness: int = 0,
    update_seconds: float = 0.0,
    largest: int = SIMULATED_ENGINES,
) -> tuple[float, float, float]:
    """Return (seconds per step, idle share of the engines until the last trajectory, seconds of the tail).

    Args:
        hardware: cost model of an engine.
        lengths: of the trajectories.
        prompts: per step.
        samples: trajectories per prompt.
        engines: of the job.
        policy: of the admission.
        max_in_flight: most trajectories per engine.
        max_staleness: of the stage; above 0, seconds per step include the part of the update that sampling hides.
        update_seconds: seconds of an update with its transfer of weights; only with max_staleness.
        largest: most engines of the simulation.
    """
    simulated = min(engines, largest)
    share = max(1, round(prompts * simulated / engines))
    count = PIPELINE_STEPS if max_staleness else 1
    steps = [lengths.draw(prompts=share, samples=samples, seed=0, first=at * share) for at in range(count)]
    scheduling = make_policy(policy, max_in_flight=max_in_flight)
    if isinstance(scheduling, Graded):
        scheduling.refresh = OBSERVE_SECONDS
    result: SimulationResult = simulate(
        steps,
        hardware,
        scheduling,
        engines=simulated,
        max_staleness=max_staleness,
        update_seconds=update_seconds,
        observe_seconds=OBSERVE_SECONDS,
    )
    # A step of fewer prompts than engines leaves some engines without work, as in the job.
    seconds = result.step_seconds[0] if count == 1 else (result.makespan - result.step_seconds[0]) / (count - 1)
    return seconds, result.idle_share, result.tail_seconds


def rollout_seconds(
    job: AgenticRLJob,
    stage: Stage,
    hardware: Hardware,
    lengths: Lengths,
    *,
    engines: int,
    max_staleness: int = 0,
    update_seconds: float = 0.0,
    largest: int = SIMULATED_ENGINES,
) -> tuple[float, float, float]:
    """Return `simulate_rollouts` with the settings of a stage of the job."""
    settings, admission = job.grpo_settings(stage), job.spec.rollout.admission
    return simulate_rollouts(
        hardware,
        lengths,
        prompts=settings.prompts_per_step,
        samples=settings.rollouts_per_prompt,
        engines=engines,
        policy=admission.policy,
        max_in_flight=admission.max_in_flight,
        max_staleness=max_staleness,
        update_seconds=update_seconds,
        largest=largest,
    )
