"""Scores a finished trajectory: answer tags, penalties, and the verdict on the answer.

Called by the collector once per trajectory. The only code that computes the penalties of a trajectory (eqs. 4 and 5);
Resample-on-Correct, the metrics and the reports read them from the trajectory.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from rstar2_train.data.problems import Problem
from rstar2_train.grpo_roc.penalties import error_penalty, format_penalty
from rstar2_train.rewards.extract import count_answers
from rstar2_train.rewards.task_rewards import Response, TaskRewards
from rstar2_train.rewards.verdict import EXCLUDED, Grade, Verdict
from rstar2_train.rewards.verify import SnippetRunner
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.row_data import read_data
from rstar2_train.rollout.trajectory import ToolCall, Trajectory

MAX_CHECKED_BYTES = 512 * 1024
"""Bytes of the calls' files that a checker gets: with the files of the row they fit into its standard input."""
_ERRORS = {
    "internal": "the sandbox could not run the answer parser",
    "undecided": "the check of the answer exceeded its limits twice",
}
_MATHEMATICS = TaskRewards()


async def score_trajectory(
    trajectory: Trajectory,
    model_text: str,
    *,
    chat_format: ChatFormat,
    judge: SnippetRunner,
    problem: Problem | None = None,
    rewards: TaskRewards = _MATHEMATICS,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Set the penalties, the verdict and the reward (eq. 3) of a trajectory.

    `model_text`: the text of all turns that the model wrote. `problem`: the row, for rewards that read more than its
    answer; `files`: its files. A trajectory that a limit truncated has no answer: its
    reward is 0. If the judge cannot run the answer parser, or the check exceeds its limits twice, the trajectory is
    lost to the judge; a trajectory whose checker fails twice is lost to the checker.

    Raises JudgeUnavailable when the judge is unreachable; the penalties are then set, the verdict is not.
    """
    set_penalties(trajectory, model_text)
    if trajectory.truncated:
        return
    last_turn = chat_format.model_text(trajectory.segments[-1].token_ids)
    response = Response(
        model_text=model_text,
        last_turn=last_turn,
        row=await _row(trajectory, problem),
        files={**(files or {}), **returned_files(trajectory.calls)},
        calls=[_call(call) for call in trajectory.calls],
    )
    grade = await rewards.grade(response, problem.reward if problem else "", judge=judge)
    trajectory.set_grade(grade)
    if grade.verdict in EXCLUDED:
        trajectory.lost_to = "checker" if grade.reason else "judge"
        trajectory.error = f"{trajectory.lost_to}: {grade.reason or _ERRORS[grade.verdict]}"


def returned_files(calls: Sequence[ToolCall]) -> dict[str, bytes]:
    """Return the files of a rollout's calls as a checker finds them: `out/NAME` -> content.

    Of files with one name it is the last. The newest files have priority: at most MAX_CHECKED_BYTES together.
    """
    files: dict[str, bytes] = {}
    left = MAX_CHECKED_BYTES
    for file in (file for call in reversed(calls) for file in call.files):
        name = f"out/{file.name}"
        if file.content is not None and name not in files and file.size <= left:
            files[name] = base64.b64decode(file.content)
            left -= file.size
    return files


def score_episode(trajectory: Trajectory, model_text: str, reward: float | None, *, correct_from: float) -> None:
    """Set the penalties, the verdict and the reward of a trajectory by the reward of its environment.

    `reward`: of the last observation that has one, clipped to [0, 1]; None: 0. A truncated trajectory has reward 0.
    """
    set_penalties(trajectory, model_text)
    trajectory.correct_from = correct_from
    if trajectory.truncated:
        return
    score = min(1.0, max(0.0, reward or 0.0))
    verdict: Verdict = "correct" if score >= correct_from else "wrong"
    reason = trajectory.reason  # of the program that posted the reward
    trajectory.set_grade(Grade(verdict=verdict, answer=None, score=score, correct_from=correct_from, reason=reason))


def set_penalties(trajectory: Trajectory, model_text: str) -> None:
    """Set p_err and p_format. An episode that its environment ended, and an answer by calls, need no answer block."""
    trajectory.answer_tags, trajectory.tags_balanced = count_answers(model_text)
    trajectory.p_err = error_penalty(calls=len(trajectory.calls), errors=trajectory.call_errors)
    if trajectory.stop != "done" and not trajectory.answered_by_calls:
        trajectory.p_format = format_penalty(
            answers=trajectory.answer_tags, turns=trajectory.turns, balanced=trajectory.tags_balanced
        )


async def _row(trajectory: Trajectory, problem: Problem | None) -> dict[str, Any]:
    """Return the fields of the row that a checker reads."""
    row: dict[str, Any] = {"id": trajectory.prompt_id, "answer": trajectory.gold}
    if problem is not None:
        row["problem"] = problem.problem
        row["data"] = await read_data(problem)
    return row


def _call(call: ToolCall) -> dict[str, str]:
    """Return a tool call as a checker reads it."""
    return {"name": call.name, "code": call.code, "status": call.status, "response": call.response}
