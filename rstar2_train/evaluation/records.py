"""What an evaluation is, on disk and in the report: snake_case JSON, read by people's scripts as it stands.

A driver measures its model at the end of its stage and writes `stages/<stage>/evaluation.json`; the report gathers
them. Ratios are in 0..1, lengths in tokens, durations in seconds; null means "not measured" (never 0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rstar2_train.utils.files import write_atomically


class RecordModel(BaseModel):
    """Base of the evaluation's models: no unknown fields, one text a field."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class SliceMetrics(RecordModel):
    """Pass@1 of one group of problems."""

    problems: int
    """Problems with at least one valid sample."""
    samples: int
    """Valid samples of them."""
    pass_at_1: float
    """Mean over problems of the share of their samples that are correct."""
    pass_at_1_se: float | None = None
    """Standard error of that mean, clustered by problem; null with a single problem."""


class InstructionMetrics(RecordModel):
    """How well instructions were followed, in a benchmark that is scored by them (IFEval)."""

    prompts: int
    """Problems with instructions and at least one valid sample."""
    instructions: int
    """Instructions in them."""
    prompt_strict: float
    """Share of samples that follow all their instructions: pass@1 of these problems."""
    prompt_loose: float
    """The same when each may be followed without first line, last line or asterisks."""
    instruction_strict: float
    """Share of instructions that are followed."""
    instruction_loose: float
    """The same, loosely."""
    kinds: dict[str, float] = {}
    """`instruction_strict` of each kind of instruction."""


class Evaluation(RecordModel):
    """One measurement of one model on one set of problems."""

    stage: str
    """The stage whose model was measured."""
    attempt: int = 1
    """The attempt of the stage that measured it."""
    step: int | None = None
    """Steps of the stage that the model had been trained for; null where the stage trains nothing."""
    temperature: float
    """Sampling temperature."""
    max_response_tokens: int
    """Budget of a response."""
    max_turns: int
    """Most assistant turns."""
    seconds: float
    """Wall time of the measurement."""
    problems: int
    """Problems asked."""
    samples: int
    """Valid samples: those that infrastructure did not lose."""
    excluded: int
    """Samples lost to infrastructure; in no other figure here."""
    problem_set: str
    """Short hash of the problems' ids: two measurements compare only where it is equal."""
    pass_at_1: float | None
    """Mean over problems of the share of their samples that are correct; null without valid samples."""
    pass_at_1_se: float | None
    """Standard error of pass_at_1, clustered by problem."""
    pass_at_k: dict[int, float] = {}
    """Unbiased pass@k for powers of two up to the samples a problem, over problems with at least k valid ones."""
    hard_pass_at_1: float | None
    """pass_at_1 over the problems marked hard; null where there is none."""
    hard_pass_at_1_se: float | None
    """Its standard error."""
    tool_error_ratio: float | None
    """Failed tool calls over tool calls, in all valid samples; null without calls."""
    tool_error_ratio_correct: float | None
    """The same in correct samples: what Resample-on-Correct lowers (paper Fig. 4)."""
    calls_per_sample: float | None
    """Tool calls a sample."""
    turns: float | None
    """Assistant turns a sample."""
    mean_tokens: float | None
    """Response tokens a sample, tool output included."""
    truncated: float | None
    """Share of samples that a limit stopped before they answered."""
    no_answer: float | None
    """Share of samples without an extractable answer, the truncated ones included."""
    slices: dict[str, SliceMetrics] = {}
    """By the problems' own `slice`."""
    benchmarks: dict[str, SliceMetrics] = {}
    """By benchmark, in an Evaluate stage."""
    instructions: InstructionMetrics | None = None
    """Over the problems that are scored by instructions; null where there is none."""


StageType = Literal["SFT", "GRPO", "Filter", "Evaluate"]


class StageReport(RecordModel):
    """One stage's row of the report: the ten agreed keys first, then what explains them."""

    name: str
    type: StageType
    steps: int | None
    """Steps done; null where the stage has none."""
    attempts: int
    """Attempts it took; 0: not started."""
    pass_at_1: float | None
    hard_pass_at_1: float | None
    tool_error_ratio_correct: float | None
    mean_tokens: float | None
    truncated: float | None
    pass_at_1_se: float | None = None
    pass_at_1_before: float | None = None
    """The last stage before this one that was measured on the same problems under the same limits."""
    hard_pass_at_1_se: float | None = None
    hard_pass_at_1_before: float | None = None
    temperature: float | None = None
    samples: int | None = None
    excluded: int | None = None
    outcome: str | None = None
    """completed, advanced, suspended or failed; null: still running, or not started."""
    reason: str | None = None
    slices: dict[str, SliceMetrics] = {}
    benchmarks: dict[str, SliceMetrics] = {}


class JobReport(RecordModel):
    """The whole job: `report.json`."""

    job: str
    seconds: float
    """Wall time of the job, over all its runs."""
    seed: int
    stages: list[StageReport]


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write `evaluation.json`, atomically."""
    write_record(path, evaluation)


def read_evaluation(path: Path) -> Evaluation:
    """Read `evaluation.json`. Raises FileNotFoundError, or pydantic's ValidationError naming the field."""
    return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))


def write_record(path: Path, record: RecordModel) -> None:
    """Write a record as JSON, atomically, nulls included."""
    write_atomically(path, record.model_dump_json(indent=1) + "\n")
