"""A lower bound of the makespan of a step: no scheduler that keeps the KV cache within its size can be faster.

Reading the cache costs `token` seconds per token of context and sampled token, for any batch; each step costs
`step` seconds, and a step cannot serve more context than the cache holds. The work is at best divided evenly. The
longest trajectory, alone in an engine, is another bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar2_train.simulation.hardware import Hardware
from rstar2_train.simulation.workload import SimulatedTrajectory


def lower_bound(trajectories: Sequence[SimulatedTrajectory], hardware: Hardware, *, engines: int) -> float:
    """Return the lower bound in seconds."""
    tokens, context, prefill, longest = 0, 0.0, 0, 0.0
    for trajectory in trajectories:
        own, present = 0.0, trajectory.prompt_tokens
        waits = sum(turn.tool_seconds for turn in trajectory.turns)
        for turn in trajectory.turns:
            own += turn.tokens * (present + turn.tokens / 2)
            present += turn.tokens + turn.tool_tokens
        tokens += trajectory.sampled
        context += own
        filled = trajectory.prompt_tokens + sum(turn.tool_tokens for turn in trajectory.turns)
        prefill += filled
        alone = trajectory.sampled * hardware.seconds(1, 0) + own * hardware.token_seconds
        longest = max(longest, alone + waits + filled * hardware.prefill_seconds)
    steps = max(context / hardware.kv_tokens, tokens / hardware.max_sequences)
    work = steps * hardware.step_seconds + tokens * hardware.sequence_seconds + context * hardware.token_seconds
    requests = sum(len(trajectory.turns) for trajectory in trajectories)
    work += prefill * hardware.prefill_seconds + requests * hardware.request_seconds
    return max(work / engines, longest)
