"""The record of one rollout: the prompt's tokens, the turns, the tool calls and the verdict.

Scoring, resampling, the update, tracking and analysis read it. Token ids are those that the engine sampled; they are
never tokenised again. They are arrays of int32, and the log-probabilities arrays of float32, as an engine sends them
and as Parquet stores them: Python objects would cost more than the rest of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rstar2_train.judge.types import ReturnedFile
from rstar2_train.rewards.verdict import EXCLUDED, Grade, Verdict
from rstar2_train.tools.types import CallStatus
from rstar2_train.trainer.types import TokenSequence

if TYPE_CHECKING:
    from rstar2_train.inference.sampled_turn import SampledTurn

SegmentKind = Literal["model", "tool", "prompt"]
"""`prompt`: all tokens before the first trained token of a further sequence (`Trajectory.sequences`)."""
StopReason = Literal["answered", "length", "max_turns", "tool_overflow", "done", "infrastructure"]
"""`done`: the environment, or the program of an agent, ended the episode."""
LostTo = Literal["engine", "judge", "checker", "server"]
"""`server`: an MCP server, an environment, or the program of an agent."""


@dataclass(slots=True)
class Segment:
    """Consecutive tokens of one author. Only `model` segments are trained on."""

    kind: SegmentKind
    token_ids: array[int]
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    """Log-probabilities of `token_ids` under the engine's sampling policy; only for model segments."""
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Each weight version that sampled tokens, with the position of its first one; only for model segments."""
    seconds: float = 0.0
    """Wall time of the generation, or of the tool calls."""
    routes: bytes = b""
    """Experts that a mixture chose for consecutive tokens of the sequence (`RouteFormat`), up to the last but one of
    this segment: those of all model segments of a sequence, one after the other, start at its first token."""

    @classmethod
    def sampled(cls, turn: SampledTurn, *, seconds: float, routes: bytes | None = None) -> Segment:
        """Return the segment of a turn of the model. `routes`: of the segment; None: those of the turn."""
        own = bytes(turn.routes) if routes is None else routes
        return cls("model", turn.token_ids, turn.logprobs, turn.versions, seconds, own)

    @property
    def weight_version(self) -> str:
        """Weight version that sampled its first token; empty if no engine sampled it."""
        return self.versions[0][0] if self.versions else ""

    def version_spans(self) -> list[tuple[str, int]]:
        """Return each weight version with its number of tokens, in order."""
        ends = [*(start for _, start in self.versions[1:]), len(self.token_ids)]
        return [(version, end - start) for (version, start), end in zip(self.versions, ends, strict=False)]


@dataclass(slots=True)
class ToolCall:
    """One tool call of a turn, with the status that the judge's trusted side reported."""

    turn: int
    name: str
    code: str
    """The program; of a function tool, its arguments as JSON."""
    stdin: str
    status: CallStatus
    response: str
    """Text that the model received."""
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    files: list[ReturnedFile] = field(default_factory=list)
    """Files that the call wrote into /tmp/out; the model reads only their names, sizes and types."""

    @property
    def is_error(self) -> bool:
        """Whether the call counts as a tool error in p_err (eq. 4): every status except `ok`."""
        return self.status != "ok"


@dataclass(slots=True)
class Trajectory:
    """One rollout of one problem."""

    prompt_id: str
    sample: int
    """Index in its group, 0 .. 2G-1."""
    prompt_ids: array[int]
    segments: list[Segment] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    stop: StopReason = "answered"
    turns: int = 0
    answer_tags: int = 0
    """Complete `<answer>...</answer>` blocks in model-written text."""
    tags_balanced: bool = True
    """Whether every `<answer>` was closed, in order."""
    text: str = ""
    """Decoded model and tool text, for display."""
    answer: str | None = None
    gold: str = ""
    verdict: Verdict = "no_answer"
    reward: float = 0.0
    """1 if the answer is correct, else 0 (eq. 3); a score in [0, 1] from a checker or tests."""
    p_err: float = 0.0
    """Tool-error penalty (eq. 4)."""
    p_format: float = 0.0
    """Answer-format penalty (eq. 5)."""
    kept: bool = False
    selection_reason: str = ""
    """Why Resample-on-Correct kept or dropped it (`grpo_roc.resample.RolloutSelection.reasons`)."""
    slice: str = ""
    """Label of the problem's subset, such as its level."""
    hard: bool = False
    started_at: float = 0.0
    """Unix time of the first request; 0 if unknown."""
    seconds: float = 0.0
    error: str = ""
    """The infrastructure failure of a lost rollout."""
    lost_to: LostTo | None = None
    """Service whose failure lost the rollout; None if it is not lost, or in a file from before this field."""
    correct_from: float = 1.0
    """Lowest reward of a correct response (`rewards[].correctFrom`)."""
    reason: str = ""
    """Reason of the reward, from a checker or tests."""

    @property
    def correct(self) -> bool:
        """Whether the response is correct (eq. 3): its reward is at least `correct_from`."""
        return self.verdict == "correct"

    @property
    def failed(self) -> bool:
        """Whether the rollout is excluded before resampling, never scored 0: lost to infrastructure, or undecided."""
        return self.stop == "infrastructure" or self.verdict in EXCLUDED

    @property
    def truncated(self) -> bool:
        """Whether a limit stopped it before it answered."""
        return self.stop in ("length", "max_turns", "tool_overflow")

    @property
    def answered_by_calls(self) -> bool:
        """Whether the calls of the last turn are the answer: functions that a row declares do not run."""
        return self.stop == "answered" and any(call.turn == self.turns - 1 for call in self.calls)

    @property
    def response_tokens(self) -> int:
        """Number of tokens after the prompts, tool output included."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.kind != "prompt")

    @property
    def call_errors(self) -> int:
        """Number of tool errors."""
        return sum(call.is_error for call in self.calls)

    def set_grade(self, grade: Grade) -> None:
        """Set the verdict, the answer and the reward (eq. 3)."""
        self.verdict, self.answer, self.reward = grade.verdict, grade.answer, grade.score
        self.correct_from, self.reason = grade.correct_from, grade.reason

    def mark_lost(self, lost_to: LostTo, error: Exception) -> None:
        """Mark the rollout as lost to a failure of a service."""
        self.stop, self.verdict = "infrastructure", "internal"
        self.lost_to, self.error = lost_to, f"{lost_to}: {error}"

    def trained_segments(self) -> list[Segment]:
        """Return the segments that the trainer reads, in order: each `prompt` starts a sequence.

        The program of an agent may edit its history or run several conversations. Its segments then have their own
        prompts, and `prompt_ids`, the prompt of the row, is not trained on.
        """
        has_prompt = bool(self.segments) and self.segments[0].kind == "prompt"
        return self.segments if has_prompt else [Segment("prompt", self.prompt_ids), *self.segments]

    def sequences(
        self, *, advantage: float = 0.0, staleness: Callable[[str], int] | None = None
    ) -> list[TokenSequence]:
        """Return the sequences that the trainer reads: one, unless further segments are prompts.

        `staleness`: returns the age of a weight version, in steps; None: every token has age 0.
        """
        segments = self.trained_segments()
        starts = [at for at, segment in enumerate(segments) if segment.kind == "prompt"]
        ends = [*starts[1:], len(segments)]
        return [_sequence(segments[start:end], advantage, staleness) for start, end in zip(starts, ends, strict=True)]


def _sequence(segments: Sequence[Segment], advantage: float, staleness: Callable[[str], int] | None) -> TokenSequence:
    ids, logprobs = array("i"), array("f")
    mask: list[NDArray[np.bool_]] = []
    ages: list[NDArray[np.int32]] = []
    for segment in segments:
        count, sampled = len(segment.token_ids), segment.kind == "model"
        ids.extend(segment.token_ids)
        logprobs.extend(segment.logprobs if sampled else array("f", bytes(4 * count)))
        mask.append(np.full(count, sampled))
        if staleness is None or not segment.versions:
            ages.append(np.zeros(count, np.int32))
        else:
            ages += [np.full(tokens, staleness(version), np.int32) for version, tokens in segment.version_spans()]
    age = np.concatenate(ages)
    return TokenSequence(
        ids=np.asarray(ids),
        mask=np.concatenate(mask),
        advantage=advantage,
        engine_logprobs=np.asarray(logprobs),
        staleness=age if age.any() else None,
        routes=b"".join(segment.routes for segment in segments) or None,
    )
