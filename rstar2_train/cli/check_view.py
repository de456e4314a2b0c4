"""The text of `rstar2 env check`: a trajectory as the trainer sees it. Pure.

Each line of a token segment starts with a mark: `+` for tokens that the model learns from, `|` for masked ones. On a
terminal their colours differ too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from rstar2_train.launch.evaluation.task_check import PreparedCheck
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import ToolCall, Trajectory
from rstar2_train.utils.text import printable

TRAINED, MASKED = "+", "|"
"""Mark of a line of trained tokens, and of masked ones."""
_MASKED_KINDS = {"prompt": "prompt", "tool": "tool output"}
_STYLES = {TRAINED: "green", MASKED: "bright_black"}
_STOPS = {
    "answered": "a turn without a call",
    "length": "a limit of tokens: the response is truncated",
    "max_turns": "maxTurns: the calls of the last turn did not run",
    "done": "the environment or the program of the agent has ended the episode",
    "tool_overflow": "the tool output does not fit into maxResponseTokens",
    "infrastructure": "an infrastructure failure",
}

_BY_CALLS = "the calls of the last turn are the answer: the row declares the functions"


def render_check(check: PreparedCheck, trajectory: Trajectory) -> Text:
    """Return the whole conversation, its calls, penalties and reward."""
    text = Text()
    for part in _parts(check, trajectory):
        text.append_text(part)
        text.append("\n")
    return text


def _parts(check: PreparedCheck, trajectory: Trajectory) -> Iterator[Text]:
    chat_format, sampling = check.chat_format, check.sampling
    yield Text(f"row {check.problem.id} of {check.data}, stage {check.stage}")
    if check.note:
        yield Text(f"note: {check.note}", style="yellow")
    yield Text(f"{TRAINED} trained tokens, {MASKED} masked tokens")
    turn = 0
    for segment in trajectory.trained_segments():
        if segment.kind != "model":
            yield _heading(f"{_MASKED_KINDS[segment.kind]}: {len(segment.token_ids)} tokens, masked")
            yield _segment(chat_format, segment.token_ids, MASKED)
            continue
        yield _heading(f"turn {turn + 1} of the model: {len(segment.token_ids)} tokens, trained")
        yield _segment(chat_format, segment.token_ids, TRAINED)
        yield from _calls([call for call in trajectory.calls if call.turn == turn])
        turn += 1
    yield _heading("result")
    if check.turns is not None and turn < len(check.turns):
        yield Text(f"note: {len(check.turns) - turn} turns of the script were not used", style="yellow")
    stop = _BY_CALLS if trajectory.answered_by_calls else _STOPS[trajectory.stop]
    yield Text(f"stop: {trajectory.stop}: {stop}")
    yield Text(
        f"size: {trajectory.turns} of {sampling.max_turns} turns, {trajectory.response_tokens} of "
        f"{sampling.max_response_tokens} tokens"
    )
    yield Text(f"tool errors: {trajectory.call_errors} of {len(trajectory.calls)} calls, p_err {trajectory.p_err:g}")
    yield Text(f"answer format: {trajectory.answer_tags} answer blocks, p_format {trajectory.p_format:g}")
    yield from _verdict(trajectory)


def _verdict(trajectory: Trajectory) -> Iterator[Text]:
    if trajectory.failed:
        yield Text(f"lost, never scored: {printable(trajectory.error)}", style="bold red")
        return
    yield Text(f"answer: {printable(repr(trajectory.answer))}, known answer: {printable(repr(trajectory.gold))}")
    reason = f": {printable(trajectory.reason)}" if trajectory.reason else ""
    style = "bold green" if trajectory.correct else "bold yellow"
    verdict = "truncated" if trajectory.truncated else trajectory.verdict
    yield Text(
        f"reward: {trajectory.reward:g} (correct from {trajectory.correct_from:g}), {verdict}{reason}", style=style
    )


def _calls(calls: Sequence[ToolCall]) -> Iterator[Text]:
    """Yield a line per call: its name, status and time."""
    for number, call in enumerate(calls, start=1):
        style = "red" if call.is_error else "cyan"
        seconds = f", {call.run_seconds:.2f} s" if call.run_seconds else ""
        yield Text(f"  call {number}: {printable(call.name) or '?'}: status {call.status}{seconds}", style=style)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _segment(chat_format: ChatFormat, token_ids: Sequence[int], mark: str) -> Text:
    lines = chat_format.decode(token_ids).removesuffix("\n").split("\n")
    return Text("\n".join(f"{mark} {printable(line)}" for line in lines), style=_STYLES[mark])
