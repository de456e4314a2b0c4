"""The trajectories of a simulation: drawn from the statistics of the paper, or those of a job's Parquet files.

The paper gives no distribution of lengths. The drawn ones have its budgets (8K, 12K; §4.3), its calls per trajectory
(45K calls per 16,384 rollouts), a tool latency of 0.3 s (Fig. 6), and a log-normal length with a mean from
the settings. Trajectories of one prompt share a part of it, because some problems are harder.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS_PER_TRAJECTORY = 45_000 / 16_384
"""Mean calls per trajectory (paper §3.1)."""
TOOL_SECONDS = 0.3
"""Mean latency of a call (paper, Fig. 6)."""
TOOL_TOKENS = 80
"""Mean tokens of the turn that answers a call."""
PROMPT_TOKENS = 600
"""Mean tokens of a prompt with its system message and the tool's signature."""


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """One turn of the model, and the tool response after it."""

    tokens: int
    tool_tokens: int = 0
    """Tokens of the tool response; 0 after the last turn."""
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedTrajectory:
    """One trajectory with lengths that the scheduler does not know."""

    group: str
    prompt_tokens: int
    budget: int
    turns: tuple[SimulatedTurn, ...]

    @property
    def length(self) -> int:
        """Tokens after the prompt."""
        return sum(turn.tokens + turn.tool_tokens for turn in self.turns)

    @property
    def sampled(self) -> int:
        """Tokens that the model samples."""
        return sum(turn.tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Parameters of drawn trajectories."""

    budget: int
    mean: float
    """Mean tokens that the model samples, before the budget cuts them."""
    spread: float = 0.7
    """Standard deviation of the logarithm of the length."""
    shared: float = 0.6
    """Share of the variance between prompts."""
    max_turns: int = 10


def draw_step(
    statistics: LengthStatistics, *, prompts: int, samples: int, seed: int, first: int = 0
) -> list[SimulatedTrajectory]:
    """Return the trajectories of one step, all samples of a prompt in a row; `first`: number of the first prompt."""
    drawn: list[SimulatedTrajectory] = []
    for prompt in range(first, first + prompts):
        source = random.Random(f"{seed} {prompt}")
        difficulty = source.gauss(0, 1)
        prompt_tokens = int(PROMPT_TOKENS * source.uniform(0.8, 1.3))
        drawn += (_draw(source, statistics, f"prompt-{prompt}", prompt_tokens, difficulty) for _ in range(samples))
    return drawn


def read_steps(folder: Path, *, budget: int) -> list[list[SimulatedTrajectory]]:
    """Return the trajectories of a job's Parquet files, one list per step. `budget`: its maxResponseTokens."""
    from rstar2_train.rollout.trajectory_store import step_files, stream

    steps = [
        [_from_row(row, budget) for row in stream(path, ["prompt_id", "prompt_ids", "segments"])]
        for _, path in step_files(folder)
    ]
    return [[trajectory for trajectory in step if trajectory.turns] for step in steps]


def _draw(
    source: random.Random, statistics: LengthStatistics, group: str, prompt_tokens: int, difficulty: float
) -> SimulatedTrajectory:
    own = source.gauss(0, 1)
    sigma, shared = statistics.spread, statistics.shared
    deviation = sigma * (math.sqrt(shared) * difficulty + math.sqrt(1 - shared) * own)
    length = statistics.mean * math.exp(deviation - sigma * sigma / 2)
    calls = min(statistics.max_turns - 1, _poisson(source, CALLS_PER_TRAJECTORY))
    shares = [source.gammavariate(1.5, 1) for _ in range(calls + 1)]
    turns: list[SimulatedTurn] = []
    left = statistics.budget
    for at, share in enumerate(shares):
        wanted = max(16, int(length * share / sum(shares)))
        tool_tokens = max(8, int(source.expovariate(1 / TOOL_TOKENS))) if at < calls else 0
        tokens = min(wanted, left)
        left -= tokens
        if tokens < wanted or left <= tool_tokens or not tool_tokens:
            turns.append(SimulatedTurn(tokens))
            break
        turns.append(SimulatedTurn(tokens, tool_tokens, source.expovariate(1 / TOOL_SECONDS)))
        left -= tool_tokens
    return SimulatedTrajectory(group, prompt_tokens, statistics.budget, tuple(turns))


def _poisson(source: random.Random, mean: float) -> int:
    limit, count, product = math.exp(-mean), 0, source.random()
    while product > limit:
        count += 1
        product *= source.random()
    return count


def _from_row(row: dict[str, object], budget: int) -> SimulatedTrajectory:
    prompt = row["prompt_ids"]
    segments = row["segments"]
    assert isinstance(prompt, Sequence) and isinstance(segments, Sequence)
    return SimulatedTrajectory(str(row["prompt_id"]), len(prompt), budget, tuple(_turns(segments)))


def _turns(segments: Sequence[dict[str, object]]) -> Iterator[SimulatedTurn]:
    for at, segment in enumerate(segments):
        if segment["kind"] != "model":
            continue
        tool = segments[at + 1] if at + 1 < len(segments) else None
        if tool is None or tool["kind"] != "tool":
            yield SimulatedTurn(_length(segment))
        else:
            yield SimulatedTurn(_length(segment), _length(tool), float(str(tool["seconds"])))


def _length(segment: dict[str, object]) -> int:
    ids = segment["token_ids"]
    assert isinstance(ids, Sequence)
    return len(ids)
