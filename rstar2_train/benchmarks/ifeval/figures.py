"""The metrics of IFEval: strict and loose accuracy per prompt and per instruction. Pure.

A sample is correct (pass@1) if it follows all its
instructions strictly; these metrics add the loose accuracy and the accuracy per instruction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from rstar2_train.benchmarks.ifeval.instructions import decode_instructions, decode_outcomes, holds_instructions
from rstar2_train.evaluation.benchmark_figures import BenchmarkFigures
from rstar2_train.evaluation.figure_table import FigureRow, FigureTable
from rstar2_train.evaluation.record_model import RecordModel
from rstar2_train.evaluation.sample_result import SampleResult


class InstructionMetrics(RecordModel):
    """Accuracy on a benchmark with instructions (IFEval)."""

    prompts: int
    """Problems with instructions and at least one valid sample."""
    instructions: int
    """Instructions of these problems."""
    prompt_strict: float
    """Share of samples that follow all their instructions: pass@1 of these problems."""
    prompt_loose: float
    """As prompt_strict, but each instruction may hold without the first line, the last line or asterisks."""
    instruction_strict: float
    """Share of followed instructions."""
    instruction_loose: float
    """As instruction_strict, but each instruction may hold without the first line, the last line or asterisks."""
    kinds: dict[str, float] = {}
    """Kind of instruction -> instruction_strict."""


class IFEvalFigures:
    """The plug-in."""

    field = "instructions"
    record: type[RecordModel] = InstructionMetrics

    def metrics(self, samples: Sequence[SampleResult]) -> InstructionMetrics | None:
        """Return the figures of the problems with instructions; None without such problems."""
        return instruction_metrics(samples)

    def tracked(self, metrics: InstructionMetrics) -> dict[str, float | None]:
        """Return the four accuracies."""
        names = ("prompt_strict", "prompt_loose", "instruction_strict", "instruction_loose")
        return {name: getattr(metrics, name) for name in names}

    def tables(self, metrics: InstructionMetrics, benchmarks: Mapping[str, InstructionMetrics]) -> list[FigureTable]:
        """Return the accuracies of each benchmark, and of each kind of instruction."""
        note = (
            "Benchmarks with instructions, which programs check. A prompt counts if the response follows all its "
            "instructions; the strict share of prompts equals pass@1. A loose check also accepts the response without "
            "its first line, last line or asterisks."
        )
        headings = ("benchmark", "prompts", "strict", "loose", "instructions", "strict", "loose")
        rows = [FigureRow(name, _values(figures)) for name, figures in benchmarks.items()]
        kinds = [FigureRow(kind, (share,)) for kind, share in metrics.kinds.items()]
        return [
            FigureTable("Instructions", note, headings, rows),
            FigureTable(
                "Kinds of instructions",
                "Strict accuracy.",
                ("kind of instruction", "followed"),
                kinds,
                only_on_page=True,
            ),
        ]


def _values(metrics: InstructionMetrics) -> tuple[int | float, ...]:
    prompts = (metrics.prompts, metrics.prompt_strict, metrics.prompt_loose)
    return (*prompts, metrics.instructions, metrics.instruction_strict, metrics.instruction_loose)


def instruction_metrics(samples: Sequence[SampleResult]) -> InstructionMetrics | None:
    """Return the metrics of the valid `samples` with instructions; None if no sample has instructions.

    All prompts have equal weight, and all instructions too, regardless of their number of valid samples.
    """
    prompts: dict[str, list[SampleResult]] = {}
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


PLUGIN: BenchmarkFigures = IFEvalFigures()
