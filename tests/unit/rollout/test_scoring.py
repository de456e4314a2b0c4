"""The score of a finished trajectory: penalties, verdict and reward."""

from __future__ import annotations

import pytest

from rstar2_train.judge.types import CallResult, JudgeUnavailable
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.scoring import score_episode, score_trajectory
from rstar2_train.rollout.trajectory import Segment, StopReason, ToolCall, Trajectory
from tests.support.token_arrays import token_array

ANSWER = "<answer>\\boxed{10/2}</answer>"
"""An answer that only the parser can compare with the gold answer."""


class FakeJudge:
    """Returns one result for every snippet, or raises JudgeUnavailable."""

    def __init__(self, result: CallResult | None) -> None:
        self.result = result
        self.calls = 0

    async def run(self, code: str, stdin: str = "", **_: object) -> CallResult:
        self.calls += 1
        if self.result is None:
            raise JudgeUnavailable("no route to the judge")
        return self.result


async def score(
    chat_format: ChatFormat, judge: FakeJudge, *, gold: str = "5", stop: StopReason = "answered", turns: int = 2
) -> Trajectory:
    calls = [ToolCall(0, "t", "code", "", status, "response") for status in ("ok", "timeout")]
    segments = [Segment("model", chat_format.encode(ANSWER))]
    trajectory = Trajectory("p", 0, [1], segments=segments, calls=calls, turns=turns, stop=stop, gold=gold)
    await score_trajectory(trajectory, f"{ANSWER}\n{ANSWER}", chat_format=chat_format, judge=judge)
    return trajectory


async def test_score_trajectory_correct_answer_sets_all_fields(chat_format: ChatFormat) -> None:
    """Penalties, verdict, answer and reward are set."""
    trajectory = await score(chat_format, FakeJudge(CallResult("ok", stdout="correct\n")))
    assert (trajectory.verdict, trajectory.answer, trajectory.reward) == ("correct", "10/2", 1.0)
    assert (trajectory.answer_tags, trajectory.p_err, trajectory.p_format) == (2, 0.5, 0.5)
    assert (trajectory.failed, trajectory.lost_to) == (False, None)


async def test_score_trajectory_of_calls_needs_no_block(chat_format: ChatFormat) -> None:
    """If the calls of the last turn are the answer, its blocks do not count: a row declares their functions."""
    trajectory = await score(chat_format, FakeJudge(CallResult("ok", stdout="correct\n")), turns=1)
    assert trajectory.answered_by_calls
    assert (trajectory.answer_tags, trajectory.p_err, trajectory.p_format) == (2, 0.5, 0.0)


async def test_score_trajectory_truncated_is_not_graded(chat_format: ChatFormat) -> None:
    """A truncated trajectory has penalties, but no verdict of the judge."""
    judge = FakeJudge(CallResult("ok", stdout="correct\n"))
    trajectory = await score(chat_format, judge, stop="length")
    assert (trajectory.verdict, trajectory.reward, judge.calls) == ("no_answer", 0.0, 0)
    assert (trajectory.p_err, trajectory.p_format) == (0.5, 0.5)


async def test_score_trajectory_internal_result_is_lost_to_judge(chat_format: ChatFormat) -> None:
    """A sandbox without the parser is an infrastructure failure of the judge, not a wrong answer."""
    trajectory = await score(chat_format, FakeJudge(CallResult("internal")))
    assert (trajectory.failed, trajectory.lost_to, trajectory.reward) == (True, "judge", 0.0)
    assert trajectory.error.startswith("judge: ")


async def test_score_trajectory_undecided_answer_is_excluded(chat_format: ChatFormat) -> None:
    """A check that exceeds its limits twice excludes the trajectory and names the reason."""
    judge = FakeJudge(CallResult("ok", stdout="undecided\n"))
    trajectory = await score(chat_format, judge)
    assert (trajectory.verdict, trajectory.failed, trajectory.lost_to, judge.calls) == ("undecided", True, "judge", 2)
    assert trajectory.error == "judge: the check of the answer exceeded its limits twice"


async def test_score_trajectory_unreachable_judge_raises(chat_format: ChatFormat) -> None:
    """An unreachable judge is an error for the collector."""
    with pytest.raises(JudgeUnavailable):
        await score(chat_format, FakeJudge(None))


@pytest.mark.parametrize(("reward", "verdict"), [(None, "wrong"), (0.4, "wrong"), (0.5, "correct"), (7.0, "correct")])
def test_score_episode_is_correct_from_the_threshold(reward: float | None, verdict: str) -> None:
    """The reward of an environment or a program, clipped to [0, 1], decides the verdict, and with it `correct`."""
    trajectory = Trajectory("p", 0, token_array([1]), stop="done", turns=1)
    score_episode(trajectory, "2", reward, correct_from=0.5)
    assert (trajectory.verdict, trajectory.correct) == (verdict, verdict == "correct")
    assert trajectory.reward == min(1.0, reward or 0.0)
