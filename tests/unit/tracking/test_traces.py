"""Traces of trajectories: spans in the order and with the times of the agent loop."""

import pytest

from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.tracking.traces import MAX_TEXT, Trace, build_trace, fenced, last_user_message, select_trajectories


def decode(ids: list[int]) -> str:
    return bytes(ids).decode()


@pytest.fixture
def trajectory() -> Trajectory:
    """Two calls in the first turn (one fails), then an answer."""
    return Trajectory(
        prompt_id="p1",
        sample=3,
        prompt_ids=list(b"ask"),
        segments=[
            Segment("model", list(b"call"), versions=[("v7", 0)], seconds=1.0),
            Segment("tool", list(b"result"), seconds=0.5),
            Segment("model", list(b"answer"), versions=[("v7", 0)], seconds=2.0),
        ],
        calls=[
            ToolCall(1, "run", "print(1)", "", "ok", "1", 0.1, 0.2),
            ToolCall(1, "run", "prnt(1)", "in", "error", "error: NameError", 0.1, 0.4),
        ],
        turns=2,
        answer_tags=1,
        text="call result answer",
        answer="1",
        gold="2",
        verdict="wrong",
        p_err=0.5,
        p_format=0.25,
        kept=True,
        selection_reason="negative",
        started_at=1000.0,
        seconds=3.6,
    )


def role_and_content(inputs_or_outputs: dict) -> tuple[str, str]:
    [message] = inputs_or_outputs["messages"]
    return message["role"], message["content"]


def build(trajectory: Trajectory, step: int = 4, now: float = 0.0) -> Trace:
    return build_trace(trajectory, uid="u", stage="rl-1", step=step, decode=decode, now=now)


def test_build_trace_orders_spans_as_agent_loop(trajectory: Trajectory) -> None:
    """Spans have the order and the times of the agent loop."""
    trace = build(trajectory)
    second = 1_000_000_000
    spans = [(span["name"], span["start"] / second, span["end"] / second, span["parent"]) for span in trace["spans"]]
    assert spans == [
        ("rl-1 step 4", 1000.0, 1003.6, None),
        ("generate turn 1", 1000.0, 1001.0, 0),
        ("tool ok", 1001.0, 1001.3, 0),
        ("tool error", 1001.0, 1001.5, 0),
        ("generate turn 2", 1001.5, 1003.5, 0),
        ("reward wrong", 1003.6, 1003.6, 0),
    ]
    assert [span["error"] for span in trace["spans"]] == ["", "", "", "error: NameError", "", ""]


def test_build_trace_spans_have_inputs_and_outputs(trajectory: Trajectory) -> None:
    """Each span has its inputs, outputs and attributes."""
    root, first, _, bad, last, reward = build(trajectory)["spans"]
    assert role_and_content(root["inputs"]) == ("user", "~~~\nask\n~~~")
    assert role_and_content(root["outputs"])[1].split("~~~") == [
        "**model**\n", "\ncall\n", "\n\n**tool**\n", "\nresult\n", "\n\n**model**\n", "\nanswer\n", "",
    ]  # fmt: skip
    assert (role_and_content(first["inputs"]), role_and_content(first["outputs"])) == (
        ("user", "~~~\nask\n~~~"),
        ("assistant", "~~~\ncall\n~~~"),
    )
    assert first["attributes"] == {"tokens": 4, "tokens_per_second": 4.0, "weight_version": "v7"}
    assert bad["inputs"] == {"code": "~~~python\nprnt(1)\n~~~", "input": "~~~\nin\n~~~"}
    assert bad["outputs"] == {"response": "~~~\nerror: NameError\n~~~"}
    assert (role_and_content(last["inputs"]), role_and_content(last["outputs"])) == (
        ("tool", "~~~\nresult\n~~~"),
        ("assistant", "~~~\nanswer\n~~~"),
    )
    assert reward["inputs"] == {"answer": "1", "gold": "2"}
    assert reward["attributes"]["p_err"] == 0.5 and reward["attributes"]["selection_reason"] == "negative"


def test_build_trace_tags_have_selection_reason(trajectory: Trajectory) -> None:
    """The tags have the result and the reason of the selection."""
    tags = build(trajectory)["tags"]
    assert {
        key: tags[key] for key in ("stage", "step", "verdict", "kept", "selection_reason", "p_err", "p_format")
    } == {
        "stage": "rl-1",
        "step": "4",
        "verdict": "wrong",
        "kept": "yes",
        "selection_reason": "negative",
        "p_err": "0.500",
        "p_format": "0.250",
    }


def test_build_trace_of_same_trajectory_has_same_id(trajectory: Trajectory) -> None:
    """A trace depends on its trajectory and step only."""
    assert build(trajectory, now=1.0) == build(trajectory, now=2.0)
    assert build(trajectory)["id"] != build(trajectory, step=5)["id"]
    assert len(build(trajectory)["id"]) == 32


def test_build_trace_without_start_time_uses_end(trajectory: Trajectory) -> None:
    """An unknown start time is computed from the end."""
    trajectory.started_at = 0.0
    assert build(trajectory, now=100.0)["spans"][0]["start"] == round((100.0 - 3.6) * 1e9)


def test_build_trace_has_calls_without_tool_segment(trajectory: Trajectory) -> None:
    """Calls whose results exceeded the budget have spans too."""
    del trajectory.segments[1:]
    names = [span["name"] for span in build(trajectory)["spans"]]
    assert names == ["rl-1 step 4", "generate turn 1", "tool ok", "tool error", "reward wrong"]


def test_build_trace_cuts_long_texts(trajectory: Trajectory) -> None:
    """A text above the limit is cut."""
    trajectory.segments[0].token_ids = list(b"x" * (MAX_TEXT + 5))
    text = role_and_content(build(trajectory)["spans"][1]["outputs"])[1]
    assert text.endswith("... 5 more characters\n~~~")


def test_build_trace_of_empty_trajectory(trajectory: Trajectory) -> None:
    """A lost rollout without segments gives a valid trace."""
    empty = Trajectory(prompt_id="p", sample=0, prompt_ids=[], stop="infrastructure", error="engine gone")
    trace = build(empty, now=5.0)
    assert [span["name"] for span in trace["spans"]] == ["rl-1 step 4", "reward no_answer"]
    assert trace["spans"][0]["error"] == "engine gone"


def test_select_trajectories_alternates_kinds() -> None:
    """Kept and dropped, correct and wrong trajectories alternate."""

    def make(prompt: str, kept: bool, reward: float) -> Trajectory:
        verdict: Verdict = "correct" if reward else "wrong"
        return Trajectory(prompt_id=prompt, sample=0, prompt_ids=[], kept=kept, verdict=verdict, reward=reward)

    groups = [
        [make("kept right", True, 1), make("kept right 2", True, 1)],
        [make("kept wrong", True, 0), make("dropped right", False, 1), make("dropped wrong", False, 0)],
    ]
    assert [chosen.prompt_id for chosen in select_trajectories(groups, 2)] == ["kept right", "kept wrong"]
    assert len(select_trajectories(groups, 4)) == 4
    assert select_trajectories(groups, 4)[2:] == [groups[1][1], groups[1][2]]
    assert len(select_trajectories(groups, 99)) == 5
    assert select_trajectories(groups, 0) == []


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (
            "<|im_start|>system\nTool: x<|im_end|>\n<|im_start|>user\nFind\nit.<|im_end|>\n<|im_start|>assistant\n",
            "Find\nit.",
        ),
        ("system\nTool: x\nuser\nFind it.\nassistant\n<reason>", "Find it."),
        ("user\nold\nassistant\nsaid\nuser\nnew\nassistant\n", "new"),
        ("Find it.", "Find it."),
    ],
)
def test_last_user_message_of_chatml_prompt(prompt: str, text: str) -> None:
    """The last user message is found with and without special tokens."""
    assert last_user_message(prompt) == text


def test_fenced_with_fence_in_text_uses_longer_fence() -> None:
    """A text that contains a fence gets a longer one."""
    assert fenced("a\n~~~\nb") == "~~~~\na\n~~~\nb\n~~~~"
    assert fenced("") == ""
