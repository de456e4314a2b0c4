"""The metrics of IFEval: strict and loose accuracy per prompt and per instruction. Pure.

`statistics.py` adds them to an evaluation record. A sample is correct (pass@1) if it follows all its
instructions strictly; these metrics add the loose accuracy and the accuracy per instruction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from rstar2_train.evaluation.records import InstructionMetrics
from rstar2_train.rewards.instructions import decode_instructions, decode_outcomes, holds_instructions


class InstructionSample(Protocol):
    """The fields of a scored sample that the metrics need."""

    @property
    def prompt_id(self) -> str: ...
    @property
    def gold(self) -> str: ...
    @property
    def answer(self) -> str | None: ...


def instruction_metrics(samples: Sequence[InstructionSample]) -> InstructionMetrics | None:
    """Return the metrics of the valid `samples` with instructions; None if no sample has instructions.

    All prompts have equal weight, and all instructions too, regardless of their number of valid samples.
    """
    prompts: dict[str, list[InstructionSample]] = {}
    for sample in samples:
        if holds_instructions(sample.gold):
            prompts.setdefault(sample.prompt_id, []).append(sample)
    if not prompts:
        return None
    kinds: dict[str, list[float]] = defaultdict(list)
    prompt_shares: dict[bool, list[float]] = {False: [], True: []}
    instruction_shares: dict[bool, list[float]] = {False: [], True: []}
    for group in prompts.values():
        instructions = decode_instructions(group[0].gold)
        outcomes = [decode_outcomes(sample.answer, instructions) for sample in group]
        for loose in (False, True):
            accepted = ("strict", "loose") if loose else ("strict",)
            followed = [[outcome in accepted for outcome in sample] for sample in outcomes]
            shares = [sum(column) / len(followed) for column in zip(*followed, strict=True)]
            prompt_shares[loose].append(sum(map(all, followed)) / len(followed))
            instruction_shares[loose] += shares
            if not loose:
                for instruction, share in zip(instructions, shares, strict=True):
                    kinds[instruction.id].append(share)
    return InstructionMetrics(
        prompts=len(prompts),
        instructions=len(instruction_shares[False]),
        prompt_strict=fmean(prompt_shares[False]),
        prompt_loose=fmean(prompt_shares[True]),
        instruction_strict=fmean(instruction_shares[False]),
        instruction_loose=fmean(instruction_shares[True]),
        kinds={kind: fmean(shares) for kind, shares in sorted(kinds.items())},
    )
