"""Scores a finished trajectory: answer tags, penalties, and the verdict on the answer.

Called by the collector once per trajectory. The only code that computes the penalties of a trajectory (eqs. 4 and 5);
Resample-on-Correct, the metrics and the reports read them from the trajectory.
"""

from __future__ import annotations

from rstar2_train.grpo_roc.penalties import error_penalty, format_penalty
from rstar2_train.rewards.extract import count_answers
from rstar2_train.rewards.grade import grade
from rstar2_train.rewards.verdict import EXCLUDED
from rstar2_train.rewards.verify import SnippetRunner
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory

_ERRORS = {
    "internal": "the sandbox could not run the answer parser",
    "undecided": "the check of the answer exceeded its limits twice",
}


async def score_trajectory(
    trajectory: Trajectory, model_text: str, *, chat_format: ChatFormat, judge: SnippetRunner
) -> None:
    """Set the penalties, the verdict and the reward (eq. 3) of a trajectory.

    `model_text`: the text of all turns that the model wrote. A trajectory that a limit truncated has no answer: its
    reward is 0. If the judge cannot run the answer parser, or the check exceeds its limits twice, the trajectory is
    lost to the judge.

    Raises JudgeUnavailable when the judge is unreachable; the penalties are then set, the verdict is not.
    """
    trajectory.answer_tags, trajectory.tags_balanced = count_answers(model_text)
    trajectory.p_err = error_penalty(calls=len(trajectory.calls), errors=trajectory.call_errors)
    trajectory.p_format = format_penalty(
        answers=trajectory.answer_tags, turns=trajectory.turns, balanced=trajectory.tags_balanced
    )
    if trajectory.truncated:
        return
    last_turn = chat_format.model_text(trajectory.segments[-1].token_ids)
    score = await grade(model_text, last_turn, trajectory.gold, judge=judge)
    assert score.verdict is not None
    trajectory.verdict, trajectory.answer, trajectory.reward = score.verdict, score.answer, score.reward
    if score.verdict in EXCLUDED:
        trajectory.lost_to, trajectory.error = "judge", f"judge: {_ERRORS[score.verdict]}"
