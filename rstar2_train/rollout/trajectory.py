"""A trajectory: what one rollout was made of, from the prompt's tokens to the verdict on its answer.

The record that every later room reads (reward, resampling, update, tracking, analysis). Token ids are those that the
engine sampled; they are never re-tokenised. Imports nothing but the standard library and the verdicts' names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rstar2_train.rewards.verdict import Verdict
from rstar2_train.tools.types import CallStatus

SegmentKind = Literal["model", "tool"]
StopReason = Literal["answered", "length", "max_turns", "tool_overflow", "infrastructure"]


@dataclass(slots=True)
class Segment:
    """A run of tokens by one author. Only `model` segments are trained on."""

    kind: SegmentKind
    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of `token_ids` under the engine's sampling policy; empty for tool segments."""
    weight_version: str = ""
    """Version of the weights that sampled it; empty for tool segments."""
    seconds: float = 0.0
    """Wall time of its generation, or of the tool calls behind it."""


@dataclass(slots=True)
class ToolCall:
    """One tool call of a turn, and how it ended, as the judge's trusted side saw it."""

    turn: int
    name: str
    code: str
    stdin: str
    status: CallStatus
    response: str
    """The text that the model was shown."""
    queue_seconds: float = 0.0
    run_seconds: float = 0.0

    @property
    def is_error(self) -> bool:
        """Counts into p_err (eq. 4): every status but ok. `internal` never reaches the model: it is retried."""
        return self.status != "ok"


@dataclass(slots=True)
class Trajectory:
    """One rollout of one problem."""

    prompt_id: str
    sample: int
    """Index in its group, 0 .. 2G-1."""
    prompt_ids: list[int]
    segments: list[Segment] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    stop: StopReason = "answered"
    turns: int = 0
    answer_tags: int = 0
    """Complete `<answer>...</answer>` blocks in model-written text."""
    tags_balanced: bool = True
    """Whether every `<answer>` was closed, in order."""
    text: str = ""
    """Decoded model and tool text, for people."""
    answer: str | None = None
    gold: str = ""
    verdict: Verdict = "no_answer"
    reward: float = 0.0
    """1 when the answer is right, else 0 (eq. 3)."""
    p_err: float = 0.0
    p_format: float = 0.0
    kept: bool = False
    kept_reason: str = ""
    """Why Resample-on-Correct kept or dropped it, in a word or two."""
    slice: str = ""
    """The problem's own group name (for example its level)."""
    hard: bool = False
    started_at: float = 0.0
    """Unix time at which its first request was sent; 0 when not known."""
    seconds: float = 0.0
    error: str = ""
    """What failed, when `stop` is infrastructure."""

    @property
    def failed(self) -> bool:
        """Lost to infrastructure: excluded before the split, never scored 0."""
        return self.stop == "infrastructure" or self.verdict == "internal"

    @property
    def truncated(self) -> bool:
        """Stopped by a limit before it answered."""
        return self.stop in ("length", "max_turns", "tool_overflow")

    @property
    def response_tokens(self) -> int:
        """Tokens after the prompt, tool output included."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def call_errors(self) -> int:
        """Tool calls that failed."""
        return sum(call.is_error for call in self.calls)

    def response(self) -> tuple[list[int], list[int], list[float]]:
        """Token ids, loss mask (1: sampled by the model) and engine log-probs (0 where masked), all of equal length."""
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        for segment in self.segments:
            count = len(segment.token_ids)
            sampled = segment.kind == "model"
            ids += segment.token_ids
            mask += [int(sampled)] * count
            logprobs += segment.logprobs if sampled else [0.0] * count
        return ids, mask, logprobs
