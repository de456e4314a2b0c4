"""State directory of a job with trajectories, written by the functions of the orchestrator.

A `conftest.py` imports the fixtures by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rstar2_train.api.contracts import write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.token_arrays import logprob_array, token_array

__all__ = ["chat_format", "model_folder", "rollout"]

HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">\u2028é"
CALL = '<tool_call>\n{"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(1) # check"}}\n'
CALL += "</tool_call>"

Rollout = Callable[..., Trajectory]


@pytest.fixture(scope="session")
def rollout(chat_format: ChatFormat) -> Rollout:
    """Create rollouts with a call, its response and an answer. The log-probabilities are -0.1, -0.2, ..."""

    def make(prompt_id: str = "p", sample: int = 0, *, thought: str = "I check it", **fields: object) -> Trajectory:
        turns: Sequence[tuple[str, str]] = (
            ("model", f"Compute. {CALL}<|im_end|>"),
            ("tool", chat_format.tool_turn_text(["1"])),
            ("model", f"{thought}<answer>\\boxed{{1}}</answer><|im_end|>"),
        )
        segments = []
        count = 0
        for kind, text in turns:
            ids = token_array(chat_format.encode(text))
            segment = Segment("tool", ids)
            if kind == "model":
                segment = Segment(
                    "model",
                    ids,
                    logprob_array(-0.1 * (count + index) for index in range(len(ids))),
                    [("rl-1-step-000000", 0)],
                )
                count += len(ids)
            segments.append(segment)
        trajectory = Trajectory(
            prompt_id=prompt_id,
            sample=sample,
            prompt_ids=token_array(chat_format.prompt_ids("What is 1?")),
            segments=segments,
            calls=[ToolCall(0, "execute_python_code_with_standard_io", "print(1) # check", "", "ok", "1")],
            turns=2,
            answer_tags=1,
            answer="1",
            gold="1",
        )
        for name, value in fields.items():
            setattr(trajectory, name, value)
        return trajectory

    return make


def empty_job(jobs: Path, model_folder: Path) -> JobState:
    """Create a job of SFT, RL, Filter, RL and Evaluate stages without trajectories."""
    state = JobState(jobs / "tiny")
    stages = [
        {"name": "sft", "type": "SFT", "sft": {"data": "demos.jsonl"}},
        {"name": "rl-1", "type": "GRPO", "grpo": {"data": "rl.jsonl", "steps": 2}},
        {"name": "hard", "type": "Filter", "filter": {"data": "rl.jsonl", "sampling": {"temperature": 0.9}}},
        {"name": "rl-2", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 1, "resample": {"mode": "Rank"}}},
        {"name": "eval", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "b.jsonl"}]}},
    ]
    spec = {
        "model": {"source": str(model_folder)},
        "stages": stages,
        "validation": {"data": "held-out.jsonl", "sampling": {"temperature": 0.7}},
    }
    write_model(state.job_file, AgenticRLJob.model_validate({"metadata": {"name": "tiny"}, "spec": spec}))
    return state


def fill(state: JobState, rollout: Rollout) -> JobState:
    """Add two steps of rl-1 and its evaluation, a slice of the Filter stage, and a hostile trajectory in rl-2."""
    good = {"reward": 1.0, "verdict": "correct"}
    for step in (1, 2):
        group = [
            rollout("p", 0, **good, kept=True, selection_reason="kept: positive"),
            rollout("p", 1, **good, p_err=0.5, selection_reason="dropped: penalty"),
            rollout("p", 2, verdict="wrong", kept=True, selection_reason="kept: negative"),
            rollout("p", 3, stop="infrastructure", selection_reason="dropped: infrastructure", segments=[]),
            *[rollout("q", sample, **good, selection_reason="untrained: all correct") for sample in range(4)],
        ]
        trajectory_store.write(trajectory_store.step_path(state.stage("rl-1").trajectories, step), group)
    trajectory_store.write(
        state.stage("rl-1").evaluation_trajectories, [rollout("held", sample, **good) for sample in (0, 1)]
    )
    trajectory_store.write(
        trajectory_store.step_path(state.stage("hard").trajectories, 1), [rollout("f", sample) for sample in (0, 1)]
    )
    bad = [rollout(HOSTILE, 0, thought=HOSTILE, selection_reason=HOSTILE, gold=HOSTILE, slice=HOSTILE)]
    trajectory_store.write(trajectory_store.step_path(state.stage("rl-2").trajectories, 1), bad)
    return state
