r"""Annotates each token of a trajectory: its text, its region of the turn, and its uncertainty.

`annotate` converts a stored trajectory to turns with columns of equal length. `study.py` counts them and `viewer.py`
writes them for the viewer. Pure: the tokenizer's decoder is a parameter.

There are two measures, both in nats. The *surprisal* is -log p of the sampled token; every trajectory has it. The
*entropy* of the whole distribution needs a forward pass of a model (`score.py`). The mean surprisal estimates the mean
entropy; the surprisal of a single token is only the improbability of that token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rstar2_train.api.roles import ToolParser
from rstar2_train.rollout.trajectory import SegmentKind, Trajectory
from rstar2_train.tools.parser import call_spans
from rstar2_train.tracking.traces import Decode

Measure = Literal["surprisal", "entropy"]
Region = Literal["reasoning", "reflection", "code", "answer"]

REGIONS: tuple[Region, ...] = ("reasoning", "reflection", "code", "answer")
HIGH_SHARE = 0.2
"""Share of a trajectory's tokens that count as high: the top 20 % of the paper (§5.4, Figs. 10 and 11)."""

FORKING_WORDS = (
    # rStar2-Agent (arXiv 2508.20722), §5.4 and Fig. 10: exploration and self-reflection.
    "but before",
    "check",
    "double-check",
    "cross-verify",
    "verify",
    "rerun",
    "re-evaluate",
    # Wang et al. 2025 (arXiv 2506.01939), second entropy pattern: contrast or shift, progression, causality,
    # assumptions and definitions.
    "wait",
    "however",
    "unless",
    "thus",
    "also",
    "since",
    "because",
    "suppose",
    "assume",
    "given",
    "define",
)
"""Words and phrases that the two papers call forking tokens; matched as whole words, in any case."""

_FORKING = re.compile(
    r"\b(?:"
    + "|".join(re.escape(word).replace(r"\-", "[- ]?").replace(r"\ ", r"\s+") for word in FORKING_WORDS)
    + r")\b",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"<answer>.*?(?:</answer>|\Z)", re.DOTALL)
_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character, the maximum number of tokens that share a character."""


@dataclass(frozen=True, slots=True)
class AnnotatedTurn:
    """One segment of a trajectory. In a model turn, each list has one entry per token."""

    kind: SegmentKind
    texts: list[str]
    """Text of each token; joined, they are the text of the turn."""
    weights: str = ""
    """Weight version that sampled the turn; empty for a tool turn."""
    seconds: float = 0.0
    """Duration of the turn, in seconds."""
    surprisal: list[float] = field(default_factory=list)
    """-log p of each sampled token under the engine's sampling distribution, in nats; empty for a tool turn."""
    entropy: list[float] = field(default_factory=list)
    """Entropy of the distribution of each token, in nats; empty if no model scored the trajectory."""
    regions: list[Region] = field(default_factory=list)
    """Region of each token."""
    forking: list[bool] = field(default_factory=list)
    """Whether each token is part of a forking word."""

    def values(self, measure: Measure) -> list[float]:
        """Return the column of a measure."""
        return self.surprisal if measure == "surprisal" else self.entropy


def annotate(
    trajectory: Trajectory,
    decode: Decode,
    entropies: Sequence[float] | None = None,
    *,
    parser: ToolParser = "hermes",
) -> list[AnnotatedTurn]:
    """Return the annotated turns of a trajectory.

    `entropies`: one per model token, in order, from `score.Scorer`. `parser`: the form of its calls. Raises ValueError
    if the number of entropies differs from the number of model tokens.
    """
    sampled = sum(len(segment.token_ids) for segment in trajectory.segments if segment.kind == "model")
    if entropies is not None and len(entropies) != sampled:
        raise ValueError(f"{len(entropies)} entropies for {sampled} model tokens")
    all_texts = token_texts([token for segment in trajectory.segments for token in segment.token_ids], decode)
    turns: list[AnnotatedTurn] = []
    start = scored = 0
    for segment in trajectory.segments:
        count = len(segment.token_ids)
        texts = all_texts[start : start + count]
        start += count
        if segment.kind != "model":
            turns.append(AnnotatedTurn("tool", texts, seconds=segment.seconds))
            continue
        after_tool = bool(turns) and turns[-1].kind == "tool"
        regions = token_regions(texts, after_tool=after_tool, parser=parser)
        turns.append(
            AnnotatedTurn(
                "model",
                texts,
                weights=segment.weight_version,
                seconds=segment.seconds,
                surprisal=[max(0.0, -logprob) for logprob in segment.logprobs],
                entropy=list(entropies[scored : scored + count]) if entropies is not None else [],
                regions=regions,
                forking=forking_tokens(texts, regions),
            )
        )
        scored += count
    return turns


def token_texts(token_ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds; joined, they are the decoded text.

    A token that ends within a character adds nothing, and the token that completes the character adds all of it.
    Decoding restarts at the last token that ended with a complete character. This gives each token its left neighbour,
    which some decoders need, at linear cost.
    """
    texts: list[str] = []
    start = done = 0
    before = ""
    for end in range(1, len(token_ids) + 1):
        decoded = decode(token_ids[start:end])
        added = decoded[len(before) :]
        is_cut = added.endswith("\ufffd") and end - done < _LONGEST_CHARACTER and end < len(token_ids)
        if is_cut:
            texts.append("")
            continue
        texts.append(added)
        start, done = done, end
        before = decode(token_ids[start:done])
    return texts


def token_regions(texts: Sequence[str], *, after_tool: bool, parser: ToolParser = "hermes") -> list[Region]:
    """Return the region of each token of a model turn. `parser`: the form of its calls.

    - code: a tool call with its tags, "coding tool call tokens themselves, which include Python code and code
      comments" (rStar2-Agent §5.4);
    - answer: from `<answer>` to `</answer>`. The paper has no such region; here it is separate from the reasoning;
    - reflection: in a turn after a tool response, the text before the first call or answer: "upon receiving feedback
      from code environment, the model generates sequences of high-entropy reflection tokens, which are used to analyze
      and interpret the coding execution results" (§5.4). The paper does not define the end of a reflection;
    - reasoning: all other tokens.

    A token belongs to the region of its first character.
    """
    text = "".join(texts)
    calls = call_spans(text, parser)
    answers = [match.span() for match in _ANSWER.finditer(text) if not _inside(match.start(), calls)]
    first = min((start for start, _ in calls + answers), default=len(text))
    regions: list[Region] = []
    position = 0
    for token in texts:
        if _inside(position, calls):
            regions.append("code")
        elif _inside(position, answers):
            regions.append("answer")
        else:
            regions.append("reflection" if after_tool and position < first else "reasoning")
        position += len(token)
    return regions


def forking_tokens(texts: Sequence[str], regions: Sequence[Region]) -> list[bool]:
    """Return whether each token is part of one of `FORKING_WORDS`, outside of code and answers.

    "The first pattern corresponds to forking tokens ... these tokens introduce uncertainty, triggering the model to
    self-reflect and verify intermediate steps" (rStar2-Agent §5.4). The study counts how many of these tokens have a
    high entropy.
    """
    spans = [match.span() for match in _FORKING.finditer("".join(texts))]
    marked = []
    position = 0
    for token, region in zip(texts, regions, strict=True):
        end = position + len(token)
        is_prose = region in ("reasoning", "reflection")
        marked.append(
            is_prose and bool(token.strip()) and any(start < end and position < stop for start, stop in spans)
        )
        position = end
    return marked


def mark_highest(values: Sequence[float]) -> list[bool]:
    """Mark the top HIGH_SHARE of the values, rounded up. Of equal values the earlier is marked; 0 is never marked."""
    count = math.ceil(len(values) * HIGH_SHARE)
    top = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    marked = [False] * len(values)
    for index in top:
        marked[index] = values[index] > 0
    return marked


def _inside(position: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= position < end for start, end in spans)
