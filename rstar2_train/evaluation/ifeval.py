"""How well instructions were followed (IFEval): accuracy of prompts and of instructions, strict and loose. Pure.

Beside statistics.py, which takes it into an evaluation's record: a sample is right (pass@1) when all its instructions
are followed strictly, so these figures add what that leaves open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from rstar2_train.evaluation.records import InstructionMetrics
from rstar2_train.rewards.instructions import followed_of, is_gold, of_gold


class InstructionSample(Protocol):
    """What is read of a scored sample."""

    @property
    def prompt_id(self) -> str: ...
    @property
    def gold(self) -> str: ...
    @property
    def answer(self) -> str | None: ...


def instruction_metrics(samples: Sequence[InstructionSample]) -> InstructionMetrics | None:
    """The figures of the valid `samples` among these that have instructions; None when none has.

    Prompts weigh the same, and so do instructions, however many samples of each survived.
    """
    prompts: dict[str, list[InstructionSample]] = {}
    for sample in samples:
        if is_gold(sample.gold):
            prompts.setdefault(sample.prompt_id, []).append(sample)
    if not prompts:
        return None
    kinds: dict[str, list[float]] = defaultdict(list)
    whole: dict[bool, list[float]] = {False: [], True: []}
    each: dict[bool, list[float]] = {False: [], True: []}
    for group in prompts.values():
        asked = of_gold(group[0].gold)
        became = [followed_of(sample.answer, asked) for sample in group]
        for loose in (False, True):
            good = [[word == "strict" or (loose and word == "loose") for word in words] for words in became]
            shares = [sum(column) / len(good) for column in zip(*good, strict=True)]
            whole[loose].append(sum(map(all, good)) / len(good))
            each[loose] += shares
            if not loose:
                for one, share in zip(asked, shares, strict=True):
                    kinds[one.id].append(share)
    return InstructionMetrics(
        prompts=len(prompts),
        instructions=len(each[False]),
        prompt_strict=_mean(whole[False]),
        prompt_loose=_mean(whole[True]),
        instruction_strict=_mean(each[False]),
        instruction_loose=_mean(each[True]),
        kinds={kind: _mean(shares) for kind, shares in sorted(kinds.items())},
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
