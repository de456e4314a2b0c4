"""The host memory of the orchestrator over the steps of a GRPO stage: drawn rollouts, no engine and no ranks.

The stage's own generator and log sample each batch, the trainer's own code makes its micro-batches. A row is the
resident memory after a step, when the batch is trained on. `bench.memory` writes the rows to its results.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.context import Endpoints, StageContext
from rstar2_train.orchestrator.pipeline.generator import Generator
from rstar2_train.orchestrator.pipeline.served_version import ServedVersion
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.trainer.batching import distribute_rows, grpo_updates

STEPS, GROUPS, ROLLOUTS, TOKENS, PROMPT = 60, 512, 32, 8000, 600
"""The paper's size, with a mean length."""
TURNS, TOOL_TOKENS = 3, 80
VOCABULARY = 151_936


class DrawnRollouts:
    """Takes the place of `RolloutSession`: trajectories of random tokens and the size of the paper's."""

    async def sample_groups(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        prompts: Mapping[str, array[int]],
        on_group: Callable[[list[Trajectory]], None],
        **_: object,
    ) -> None:
        """Pass a group per problem to `on_group`."""
        for problem in problems:
            on_group([_trajectory(problem, prompts[problem.id], sample) for sample in range(samples)])
            await asyncio.sleep(0)

    def drain_metrics(self, groups: object, *, seconds: float | None) -> dict[str, float]:
        """Return no metrics."""
        return {}


def _trajectory(problem: Problem, prompt: array[int], sample: int) -> Trajectory:
    ids, logprobs, text = _drawn()
    start = int.from_bytes(os.urandom(4)) % (len(ids) - TOKENS)
    segments: list[Segment] = []
    for turn in range(TURNS):
        part = slice(start + turn * (TOKENS // TURNS), start + (turn + 1) * (TOKENS // TURNS))
        segments.append(Segment("model", ids[part], logprobs[part], [("rl-step-000001", 0)]))
        if turn < TURNS - 1:
            segments.append(Segment("tool", array("i", range(TOOL_TOKENS))))
    call = ToolCall(0, "execute_python_code_with_standard_io", os.urandom(400).hex(), "", "ok", os.urandom(100).hex())
    return Trajectory(
        prompt_id=problem.id, sample=sample, prompt_ids=prompt, segments=segments, calls=[call], turns=TURNS,
        text=text[start : start + TOKENS * 4], verdict="correct" if sample % 2 else "wrong", reward=float(sample % 2),
    )  # fmt: skip


@cache
def _drawn() -> tuple[array[int], array[float], str]:
    """Return many random tokens, log-probabilities and characters: each trajectory has copies of a part of them."""
    draw, count = np.random.default_rng(0), 64 * TOKENS
    ids = array("i", draw.integers(0, VOCABULARY, count, dtype=np.int32).tobytes())
    logprobs = array("f", draw.standard_normal(count, dtype=np.float32).tobytes())
    return ids, logprobs, os.urandom(2 * count).hex()


def measure(groups: int) -> dict[str, Any]:
    """Return the resident bytes after each step of `groups` groups."""
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_run(Path(folder), groups))
    third, last = rows[2], rows[-1]
    return {
        "groups": groups,
        "rollouts": ROLLOUTS,
        "tokens": TOKENS,
        "steps": STEPS,
        "resident_bytes": rows,
        "growth_after_third_step": last / third - 1,
        "growth_bytes_per_step": (last - third) / (STEPS - 3),
    }


async def _run(folder: Path, groups: int) -> list[int]:
    stage = {"name": "rl", "type": "GRPO", "grpo": {"data": "problems.jsonl", "steps": STEPS}}
    spec = {"model": {"source": "m"}, "grpo": {"promptsPerStep": groups}, "stages": [stage]}
    spec |= {"trajectories": {"keepSteps": 1}}
    manifest = {
        "apiVersion": "rstar2.dev/v1alpha1",
        "kind": "AgenticRLJob",
        "metadata": {"name": "memory"},
        "spec": spec,
    }
    job, state = AgenticRLJob.model_validate(manifest), JobState(folder)
    write_model(state.stage("rl").attempt_file, AttemptRecord(attempt=1, uid=job.metadata.uid))
    ctx = StageContext(job, job.spec.stages[0], 1, state, Endpoints(), Tracker.for_job(job, folder))
    problems = [Problem(f"p{number}", "q", "1") for number in range(groups)]
    prompts = {problem.id: array("i", range(PROMPT)) for problem in problems}
    served, settings = ServedVersion(), job.grpo_settings(ctx.stage)
    drawn: Any = DrawnRollouts()
    rows = []
    served.advance(0)
    async with Generator(ctx, settings, drawn, problems, prompts, served).batches(0) as batches:
        for step in range(STEPS):
            batch = await (await batches.get())
            await asyncio.to_thread(_micro_batches, batch.trained)
            del batch
            trajectory_store.prune(ctx.folder.trajectories, 1)
            rows.append(_resident())
            print(f"step {step + 1}: {rows[-1] / 2**20:.0f} MiB", file=sys.stderr, flush=True)
            served.advance(step + 1)
    return rows


def _micro_batches(trained: Any) -> None:
    """Make the micro-batches of the update, as `TrainerGroup.grpo_step` does."""
    (update,) = grpo_updates(trained, updates=1, seed=0)
    distribute_rows([row for group in update for row in group], ranks=8, tokens_per_micro_batch=20480, packed=True)


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Print the figures of the paper's size; a number as argument: of that many groups."""
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else GROUPS), indent=1))


if __name__ == "__main__":
    main()
