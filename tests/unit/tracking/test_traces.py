"""A trajectory as a trace: spans in the order and with the times of the agent loop."""

import pytest

from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.tracking.traces import MAX_TEXT, Trace, build_trace, pick, question, verbatim


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
            Segment("model", list(b"call"), weight_version="v7", seconds=1.0),
            Segment("tool", list(b"result"), seconds=0.5),
            Segment("model", list(b"answer"), weight_version="v7", seconds=2.0),
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
        kept_reason="negative",
        started_at=1000.0,
        seconds=3.6,
    )


def said(message: dict) -> tuple[str, str]:
    [one] = message["messages"]
    return one["role"], one["content"]


def build(trajectory: Trajectory, step: int = 4, now: float = 0.0) -> Trace:
    return build_trace(trajectory, uid="u", stage="rl-1", step=step, decode=decode, now=now)


def test_spans_follow_the_agent_loop(trajectory: Trajectory) -> None:
    trace = build(trajectory)
    second = 1_000_000_000
    told = [(one["name"], one["start"] / second, one["end"] / second, one["parent"]) for one in trace["spans"]]
    assert told == [
        ("rl-1 step 4", 1000.0, 1003.6, None),
        ("generate turn 1", 1000.0, 1001.0, 0),
        ("tool ok", 1001.0, 1001.3, 0),
        ("tool error", 1001.0, 1001.5, 0),
        ("generate turn 2", 1001.5, 1003.5, 0),
        ("reward wrong", 1003.6, 1003.6, 0),
    ]
    assert [one["error"] for one in trace["spans"]] == ["", "", "", "error: NameError", "", ""]


def test_spans_carry_what_went_in_and_out(trajectory: Trajectory) -> None:
    root, first, _, bad, last, reward = build(trajectory)["spans"]
    assert said(root["inputs"]) == ("user", "~~~\nask\n~~~")
    assert said(root["outputs"])[1].split("~~~") == [
        "**model**\n", "\ncall\n", "\n\n**tool**\n", "\nresult\n", "\n\n**model**\n", "\nanswer\n", "",
    ]  # fmt: skip
    assert (said(first["inputs"]), said(first["outputs"])) == (
        ("user", "~~~\nask\n~~~"),
        ("assistant", "~~~\ncall\n~~~"),
    )
    assert first["attributes"] == {"tokens": 4, "tokens_per_second": 4.0, "weight_version": "v7"}
    assert bad["inputs"] == {"code": "~~~python\nprnt(1)\n~~~", "input": "~~~\nin\n~~~"}
    assert bad["outputs"] == {"response": "~~~\nerror: NameError\n~~~"}
    assert (said(last["inputs"]), said(last["outputs"])) == (
        ("tool", "~~~\nresult\n~~~"),
        ("assistant", "~~~\nanswer\n~~~"),
    )
    assert reward["inputs"] == {"answer": "1", "gold": "2"}
    assert reward["attributes"]["p_err"] == 0.5 and reward["attributes"]["kept_reason"] == "negative"


def test_tags_say_why_it_was_kept(trajectory: Trajectory) -> None:
    tags = build(trajectory)["tags"]
    assert {key: tags[key] for key in ("stage", "step", "verdict", "kept", "kept_reason", "p_err", "p_format")} == {
        "stage": "rl-1",
        "step": "4",
        "verdict": "wrong",
        "kept": "yes",
        "kept_reason": "negative",
        "p_err": "0.500",
        "p_format": "0.250",
    }


def test_the_same_trajectory_is_the_same_trace(trajectory: Trajectory) -> None:
    assert build(trajectory, now=1.0) == build(trajectory, now=2.0)
    assert build(trajectory)["id"] != build(trajectory, step=5)["id"]
    assert len(build(trajectory)["id"]) == 32


def test_a_start_that_was_not_noted_is_reckoned_from_the_end(trajectory: Trajectory) -> None:
    trajectory.started_at = 0.0
    assert build(trajectory, now=100.0)["spans"][0]["start"] == round((100.0 - 3.6) * 1e9)


def test_calls_whose_results_did_not_fit_are_there_too(trajectory: Trajectory) -> None:
    del trajectory.segments[1:]
    names = [span["name"] for span in build(trajectory)["spans"]]
    assert names == ["rl-1 step 4", "generate turn 1", "tool ok", "tool error", "reward wrong"]


def test_long_texts_are_cut(trajectory: Trajectory) -> None:
    trajectory.segments[0].token_ids = list(b"x" * (MAX_TEXT + 5))
    text = said(build(trajectory)["spans"][1]["outputs"])[1]
    assert text.endswith("... 5 more characters\n~~~")


def test_a_trajectory_with_nothing_in_it_is_a_trace(trajectory: Trajectory) -> None:
    empty = Trajectory(prompt_id="p", sample=0, prompt_ids=[], stop="infrastructure", error="engine gone")
    trace = build(empty, now=5.0)
    assert [span["name"] for span in trace["spans"]] == ["rl-1 step 4", "reward no_answer"]
    assert trace["spans"][0]["error"] == "engine gone"


def test_pick_takes_every_kind_in_turn() -> None:
    def one(prompt: str, kept: bool, reward: float) -> Trajectory:
        return Trajectory(prompt_id=prompt, sample=0, prompt_ids=[], kept=kept, reward=reward)

    groups = [
        [one("kept right", True, 1), one("kept right 2", True, 1)],
        [one("kept wrong", True, 0), one("dropped right", False, 1), one("dropped wrong", False, 0)],
    ]
    assert [x.prompt_id for x in pick(groups, 2)] == ["kept right", "kept wrong"]
    assert len(pick(groups, 4)) == 4
    assert pick(groups, 4)[2:] == [groups[1][1], groups[1][2]]
    assert len(pick(groups, 99)) == 5
    assert pick(groups, 0) == []


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
def test_a_trace_is_listed_by_its_question(prompt: str, text: str) -> None:
    assert question(prompt) == text


def test_no_text_breaks_out_of_its_block() -> None:
    assert verbatim("a\n~~~\nb") == "~~~~\na\n~~~\nb\n~~~~"
    assert verbatim("") == ""
