r"""What each token of a trajectory is: its text, the part of the trajectory it stands in, and how uncertain it was.

First in the analysis of tokens: `annotate` turns a stored trajectory into turns with columns of equal length, which
`study` counts and `viewer` shows. Pure: a tokenizer's decoder is given as a function.

Two measures, both in nats, never mixed up: the *surprisal* -log p(token) of the token that was sampled, which every
trajectory stores, and the *entropy* of the whole distribution it was drawn from, which needs a pass of the model
(`score`). The mean of the first estimates the second; of a single token it says only how unlikely that token was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rstar2_train.rollout.trajectory import SegmentKind, Trajectory
from rstar2_train.tools.parser import call_spans

Decode = Callable[[Sequence[int]], str]
Measure = Literal["surprisal", "entropy"]
Region = Literal["reasoning", "reflection", "code", "answer"]

REGIONS: tuple[Region, ...] = ("reasoning", "reflection", "code", "answer")
HIGH_SHARE = 0.2
"""The share of a trajectory's tokens that count as high: the top 20 % of the paper (§5.4, Figs. 10 and 11)."""

FORKING_WORDS = (
    # rStar2-Agent (arXiv 2508.20722), §5.4 and Fig. 10: exploration and self-reflection.
    "but before",
    "check",
    "double-check",
    "cross-verify",
    "verify",
    "rerun",
    "re-evaluate",
    # Wang et al. 2025 (arXiv 2506.01939), its second entropy pattern: contrast or shift, progression, causality,
    # and what introduces an assumption or a definition.
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
"""Words and phrases that the two papers name as forking tokens; matched whole, whatever their case."""

_FORKING = re.compile(
    r"\b(?:"
    + "|".join(re.escape(word).replace(r"\-", "[- ]?").replace(r"\ ", r"\s+") for word in FORKING_WORDS)
    + r")\b",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"<answer>.*?(?:</answer>|\Z)", re.DOTALL)
_LONGEST_CHARACTER = 4
"""Bytes of the longest UTF-8 character: no more tokens than that can share one."""


@dataclass(frozen=True, slots=True)
class AnnotatedTurn:
    """One segment of a trajectory. The lists have an entry for each token of a model's turn."""

    kind: SegmentKind
    pieces: list[str]
    """Text of each token; joined, the text of the turn."""
    weights: str = ""
    """Version of the weights that sampled it; empty for a tool's turn."""
    seconds: float = 0.0
    surprisal: list[float] = field(default_factory=list)
    """-log p of each sampled token under the engine's sampling distribution, in nats; empty for a tool's turn."""
    entropy: list[float] = field(default_factory=list)
    """Of the distribution behind each token, in nats; empty where no model has scored the trajectory."""
    regions: list[Region] = field(default_factory=list)
    forking: list[bool] = field(default_factory=list)

    def values(self, measure: Measure) -> list[float]:
        """The column of a measure."""
        return self.surprisal if measure == "surprisal" else self.entropy


def annotate(trajectory: Trajectory, decode: Decode, entropies: Sequence[float] | None = None) -> list[AnnotatedTurn]:
    """The turns of a trajectory, token by token.

    `entropies`: one for each model token, in order, as `score` computed them. Raises ValueError when there are more or
    fewer of them than model tokens.
    """
    sampled = sum(len(segment.token_ids) for segment in trajectory.segments if segment.kind == "model")
    if entropies is not None and len(entropies) != sampled:
        raise ValueError(f"{len(entropies)} entropies for {sampled} model tokens")
    texts = pieces([token for segment in trajectory.segments for token in segment.token_ids], decode)
    turns: list[AnnotatedTurn] = []
    at = scored = 0
    for segment in trajectory.segments:
        count = len(segment.token_ids)
        words = texts[at : at + count]
        at += count
        if segment.kind == "tool":
            turns.append(AnnotatedTurn("tool", words, seconds=segment.seconds))
            continue
        after_tool = bool(turns) and turns[-1].kind == "tool"
        where = regions(words, after_tool=after_tool)
        turns.append(
            AnnotatedTurn(
                "model",
                words,
                weights=segment.weight_version,
                seconds=segment.seconds,
                surprisal=[max(0.0, -logprob) for logprob in segment.logprobs],
                entropy=list(entropies[scored : scored + count]) if entropies is not None else [],
                regions=where,
                forking=forking(words, where),
            )
        )
        scored += count
    return turns


def pieces(token_ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each token adds: joined, they are the decoded whole.

    A token that ends within a character adds nothing; the one that completes the character adds all of it. Decoding
    goes on from the last token that ended with a character, so that decoders which look at a token's left neighbour
    are followed, and the cost is linear.
    """
    texts: list[str] = []
    start = done = 0
    before = ""
    for end in range(1, len(token_ids) + 1):
        now = decode(token_ids[start:end])
        added = now[len(before) :]
        cut = added.endswith("\ufffd") and end - done < _LONGEST_CHARACTER and end < len(token_ids)
        if cut:
            texts.append("")
            continue
        texts.append(added)
        start, done = done, end
        before = decode(token_ids[start:done])
    return texts


def regions(words: Sequence[str], *, after_tool: bool) -> list[Region]:
    """The part of a model's turn that each of its tokens stands in.

    - code: a tool call with its tags, "coding tool call tokens themselves, which include Python code and code
      comments" (rStar2-Agent §5.4);
    - answer: from `<answer>` to `</answer>`. The paper does not tell it apart; here it is kept out of the reasoning;
    - reflection: in a turn that answers a tool's response, all that comes before its first call or answer: "upon
      receiving feedback from code environment, the model generates sequences of high-entropy reflection tokens, which
      are used to analyze and interpret the coding execution results" (§5.4). The paper draws no line; this one is ours;
    - reasoning: all else.

    A token belongs to the part in which its first character stands.
    """
    text = "".join(words)
    calls = call_spans(text)
    answers = [match.span() for match in _ANSWER.finditer(text) if not _inside(match.start(), calls)]
    first = min((begin for begin, _ in calls + answers), default=len(text))
    found: list[Region] = []
    at = 0
    for word in words:
        if _inside(at, calls):
            found.append("code")
        elif _inside(at, answers):
            found.append("answer")
        else:
            found.append("reflection" if after_tool and at < first else "reasoning")
        at += len(word)
    return found


def forking(words: Sequence[str], where: Sequence[Region]) -> list[bool]:
    """Whether each token is part of one of `FORKING_WORDS`, outside of code and answers.

    "The first pattern corresponds to forking tokens ... these tokens introduce uncertainty, triggering the model to
    self-reflect and verify intermediate steps" (rStar2-Agent §5.4). Whether a word really forks is for its entropy to
    say: the study counts how many of these tokens are high.
    """
    spans = [match.span() for match in _FORKING.finditer("".join(words))]
    found = []
    at = 0
    for word, region in zip(words, where, strict=True):
        end = at + len(word)
        prose = region in ("reasoning", "reflection")
        found.append(prose and bool(word.strip()) and any(begin < end and at < stop for begin, stop in spans))
        at = end
    return found


def highest(values: Sequence[float], share: float = HIGH_SHARE) -> list[bool]:
    """Marks the top `share` of a trajectory's values, rounded up; of equal ones the earlier; never a 0."""
    count = math.ceil(len(values) * share)
    top = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    marked = [False] * len(values)
    for index in top:
        marked[index] = values[index] > 0
    return marked


def _inside(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(begin <= at < end for begin, end in spans)
