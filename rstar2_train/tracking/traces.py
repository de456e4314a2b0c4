"""Converts a trajectory to a trace: a root span, one span per generation and per tool call, and one for the reward.

`tracker.py` writes traces to the journal as plain data; `mlflow_sink.py` converts them to MLflow's types. The id of a
trace is a hash of its origin, so that sending a trace twice creates one trace. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory

MAX_TEXT = 20_000
"""Maximum characters of each text in a trace. The trajectory file has the complete texts."""
_USER = re.compile(r".*(?:<\|im_start\|>|^|\n)user\n(.*?)(?:<\|im_end\|>)?\n(?:<\|im_start\|>)?assistant\b", re.DOTALL)
Decode = Callable[[Sequence[int]], str]


class Span(TypedDict):
    """One span. Times are Unix nanoseconds."""

    name: str
    type: str
    """MLflow's span type: AGENT, LLM, TOOL or EVALUATOR."""
    parent: int | None
    """Index of the parent span in the trace's list; None for the root."""
    start: int
    end: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    attributes: dict[str, Any]
    error: str
    """Error message; empty: the span is OK."""


class Trace(TypedDict):
    """One trajectory as a trace."""

    id: str
    """32 hexadecimal digits."""
    name: str
    request: str
    response: str
    tags: dict[str, str]
    spans: list[Span]
    """All spans; the first is the root."""


def trace_id(*parts: object) -> str:
    """Return 32 hexadecimal digits, a hash of `parts`."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def build_trace(trajectory: Trajectory, *, uid: str, stage: str, step: int, decode: Decode, now: float) -> Trace:
    """Return the trace of one trajectory.

    `decode`: decodes token ids without special tokens. `now`: Unix time; the end of the trajectory if its start is
    unknown. Spans are in the order of the agent loop; the calls of a turn run in parallel.
    """
    start = _nanoseconds(trajectory.started_at or now - trajectory.seconds)
    prompt = _clip(decode(trajectory.prompt_ids))
    answer = "no answer" if trajectory.answer is None else trajectory.answer
    root = Span(
        name=f"{stage} step {step}",
        type="AGENT",
        parent=None,
        start=start,
        end=start + _nanoseconds(trajectory.seconds),
        inputs=_message("user", fenced(last_user_message(prompt))),
        outputs=_message("assistant", _conversation(trajectory, decode)),
        attributes={
            "prompt_id": trajectory.prompt_id,
            "sample": trajectory.sample,
            "turns": trajectory.turns,
            "response_tokens": trajectory.response_tokens,
            "tool_calls": len(trajectory.calls),
            "tool_errors": trajectory.call_errors,
            "stop": trajectory.stop,
        },
        error=trajectory.error,
    )
    spans = [root, *_turns(trajectory, start, prompt, decode)]
    root["end"] = max(root["end"], *(span["end"] for span in spans))
    spans.append(_reward(trajectory, root["end"]))
    return Trace(
        id=trace_id(uid, stage, step, trajectory.prompt_id, trajectory.sample),
        name=root["name"],
        request=last_user_message(prompt),
        response=f"{trajectory.verdict}: {answer}",
        tags={
            "stage": stage,
            "step": str(step),
            "prompt_id": trajectory.prompt_id[:250],
            "verdict": trajectory.verdict,
            "reward": f"{trajectory.reward:g}",
            "kept": "yes" if trajectory.kept else "no",
            "selection_reason": trajectory.selection_reason[:250],
            "p_err": f"{trajectory.p_err:.3f}",
            "p_format": f"{trajectory.p_format:.3f}",
            "stop": trajectory.stop,
        },
        spans=spans,
    )


def last_user_message(prompt: str) -> str:
    """Return the last user message of a ChatML prompt, with or without special tokens; otherwise the whole prompt."""
    match = _USER.search(prompt)
    return match.group(1).strip() if match else prompt


def select_trajectories(groups: Sequence[Sequence[Trajectory]], count: int) -> list[Trajectory]:
    """Return `count` trajectories of a step, alternating between kept and dropped, correct and wrong ones.

    Deterministic, so that a repeated step sends the same traces.
    """
    kinds: dict[tuple[bool, bool], list[Trajectory]] = {}
    for group in groups:
        for trajectory in group:
            kinds.setdefault((trajectory.kept, trajectory.correct), []).append(trajectory)
    queues = [kinds[kind] for kind in sorted(kinds, reverse=True)]
    selected: list[Trajectory] = []
    row = 0
    while len(selected) < count and any(row < len(queue) for queue in queues):
        selected += [queue[row] for queue in queues if row < len(queue)]
        row += 1
    return selected[:count]


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a fenced code block. MLflow renders texts as Markdown, which alters asterisks and tags."""
    if not text:
        return ""
    fence = "~~~"
    while fence in text:
        fence += "~"
    return f"{fence}{language}\n{text}\n{fence}"


def _message(role: str, text: str) -> dict[str, Any]:
    """Return inputs or outputs in the form that MLflow renders as a chat message."""
    return {"messages": [{"role": role, "content": text}]}


def _conversation(trajectory: Trajectory, decode: Decode) -> str:
    """Return the text after the prompt, one fenced block per segment."""
    return "\n\n".join(
        f"**{segment.kind}**\n{fenced(_clip(decode(segment.token_ids)))}" for segment in trajectory.segments
    )


def _turns(trajectory: Trajectory, clock: int, prompt: str, decode: Decode) -> list[Span]:
    """Return the generation and tool spans in sequence, from time `clock`."""
    spans: list[Span] = []
    pending = _calls_by_turn(trajectory.calls)
    input_text = prompt
    generations = 0
    for segment in trajectory.segments:
        end = clock + _nanoseconds(segment.seconds)
        if segment.kind == "model":
            generations += 1
            spans.append(_generation(segment, generations, clock, end, input_text, decode))
        else:
            input_text = _clip(decode(segment.token_ids))
            # The first observation of an environment answers no call, nor does the prompt of a further sequence.
            if pending and generations and segment.kind == "tool":
                spans += [_call(call, clock) for call in pending.pop(0)]
        clock = end
    # Calls whose results exceeded the token budget have no tool segment.
    spans += [_call(call, clock) for calls in pending for call in calls]
    return spans


def _generation(segment: Segment, number: int, start: int, end: int, input_text: str, decode: Decode) -> Span:
    tokens = len(segment.token_ids)
    return Span(
        name=f"generate turn {number}",
        type="LLM",
        parent=0,
        start=start,
        end=end,
        inputs=_message("user" if number == 1 else "tool", fenced(input_text)),
        outputs=_message("assistant", fenced(_clip(decode(segment.token_ids)))),
        attributes={
            "tokens": tokens,
            "tokens_per_second": round(tokens / segment.seconds, 1) if segment.seconds > 0 else None,
            "weight_version": segment.weight_version,
        },
        error="",
    )


def _call(call: ToolCall, start: int) -> Span:
    return Span(
        name=f"tool {call.status}",
        type="TOOL",
        parent=0,
        start=start,
        end=start + _nanoseconds(call.queue_seconds + call.run_seconds),
        inputs={"code": fenced(_clip(call.code), "python"), "input": fenced(_clip(call.stdin))},
        outputs={"response": fenced(_clip(call.response))},
        attributes={
            "tool": call.name,
            "status": call.status,
            "turn": call.turn,
            "queue_seconds": round(call.queue_seconds, 4),
            "run_seconds": round(call.run_seconds, 4),
        },
        error=call.response[:500] if call.is_error else "",
    )


def _reward(trajectory: Trajectory, end: int) -> Span:
    return Span(
        name=f"reward {trajectory.verdict}",
        type="EVALUATOR",
        parent=0,
        start=end,
        end=end,
        inputs={"answer": trajectory.answer, "gold": trajectory.gold},
        outputs={"verdict": trajectory.verdict, "reward": trajectory.reward},
        attributes={
            "p_err": round(trajectory.p_err, 4),
            "p_format": round(trajectory.p_format, 4),
            "answer_tags": trajectory.answer_tags,
            "tags_balanced": trajectory.tags_balanced,
            "kept": trajectory.kept,
            "selection_reason": trajectory.selection_reason,
        },
        error="",
    )


def _calls_by_turn(calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
    turns: dict[int, list[ToolCall]] = {}
    for call in calls:
        turns.setdefault(call.turn, []).append(call)
    return [turns[turn] for turn in sorted(turns)]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n... {len(text) - MAX_TEXT} more characters"
