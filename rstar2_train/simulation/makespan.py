"""The lower bound of a step's rollout time, from its trajectories and the measured speed of the engines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.simulation.bound import lower_bound
from rstar2_train.simulation.hardware import Hardware, fit_decode
from rstar2_train.simulation.workload import SimulatedTrajectory, SimulatedTurn

LEAST_SAMPLES = 10
"""Samples of an engine's speed below which the fit means nothing."""


def makespan_bound(
    trajectories: Sequence[Trajectory], samples: Collection[tuple[float, float, float]], kv_tokens: Sequence[int]
) -> float | None:
    """Return the bound in seconds; None without trajectories, or with too few samples.

    `samples`: sequences, tokens of KV cache, and seconds per decode step; `kv_tokens`: cache of each engine. Prefill
    costs nothing here, because its time is not measured.
    """
    if len(samples) < LEAST_SAMPLES or not trajectories or not kv_tokens:
        return None
    step, sequence, token = fit_decode(list(samples))
    hardware = Hardware(
        step_seconds=step,
        sequence_seconds=sequence,
        token_seconds=token,
        prefill_seconds=0,
        kv_tokens=max(kv_tokens),
    )
    return lower_bound([_turns(trajectory) for trajectory in trajectories], hardware, engines=len(kv_tokens))


def _turns(trajectory: Trajectory) -> SimulatedTrajectory:
    turns: list[SimulatedTurn] = []
    for segment in trajectory.segments:
        count = len(segment.token_ids)
        if segment.kind == "model":
            turns.append(SimulatedTurn(count))
        elif turns:
            turns[-1] = SimulatedTurn(turns[-1].tokens, count, segment.seconds)
    return SimulatedTrajectory(
        trajectory.prompt_id, len(trajectory.prompt_ids), trajectory.response_tokens, tuple(turns)
    )
