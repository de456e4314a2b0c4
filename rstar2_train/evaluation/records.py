"""The JSON records of an evaluation and of a job's report, in snake_case. Scripts of users read them.

A stage measures its model at its end and writes `stages/<stage>/evaluation.json`; the job's report collects them.
`rstar2 eval` runs an Evaluate stage, so its `evaluation.json` is the same record. Fields with defaults may be missing
in files of older versions.
Ratios are in 0..1, lengths in tokens, durations in seconds. Null means "not measured", never 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import create_model

from rstar2_train.evaluation.benchmark_figures import figure_plugins
from rstar2_train.evaluation.record_model import RecordModel
from rstar2_train.evaluation.scores import SliceMetrics
from rstar2_train.utils.files import write_atomically


class CommonFigures(RecordModel):
    """The figures that every set of samples has."""

    problems: int
    """Number of problems."""
    samples: int
    """Valid samples: all samples that infrastructure failures did not lose."""
    excluded: int = 0
    """Samples lost to infrastructure failures or undecided; they count in no other figure."""
    undecided: int = 0
    """Excluded samples whose answer the verifier could not decide within its limits."""
    problem_set: str = ""
    """Short hash of the problem ids. Two measurements are comparable only if it is equal."""
    pass_at_1: float | None
    """Mean over problems of the share of correct samples; null without valid samples."""
    pass_at_1_se: float | None
    """Standard error of pass_at_1, clustered by problem."""
    confidence: tuple[float, float] | None = None
    """95 % confidence interval of pass_at_1; null with fewer than two problems."""
    pass_at_k: dict[int, float] = {}
    """Unbiased pass@k for powers of two up to the samples per problem, over problems with at least k valid samples."""
    hard_pass_at_1: float | None = None
    """pass_at_1 of the hard problems; null without hard problems."""
    hard_pass_at_1_se: float | None = None
    """Standard error of hard_pass_at_1, clustered by problem."""
    tool_error_ratio: float | None = None
    """Failed tool calls over all tool calls of valid samples; null without calls."""
    tool_error_ratio_correct: float | None = None
    """As tool_error_ratio, for correct samples. Resample-on-Correct lowers it (paper Fig. 4)."""
    calls_per_sample: float | None = None
    """Mean tool calls per sample."""
    turns: float | None = None
    """Mean assistant turns per sample."""
    mean_tokens: float | None = None
    """Mean response tokens per sample, with tool output."""
    truncated: float | None = None
    """Share of samples that a limit stopped before the answer."""
    no_answer: float | None = None
    """Share of samples without an extractable answer, with the truncated samples."""
    slices: dict[str, SliceMetrics] = {}
    """Slice of the problems -> metrics."""


if TYPE_CHECKING:
    Figures = CommonFigures
else:
    Figures = create_model(
        "Figures",
        __base__=CommonFigures,
        __doc__="The figures of a set of samples: all of an evaluation, or those of one benchmark.",
        **{plugin.field: (plugin.record | None, None) for plugin in figure_plugins()},
    )


class ProblemResult(RecordModel):
    """The samples of one problem."""

    id: str
    """The problem's id; in an Evaluate stage `<benchmark>/<id>`."""
    benchmark: str
    """Empty outside an Evaluate stage."""
    slice: str
    gold: str
    """Known answer, or the instructions."""
    samples: int
    """Valid samples."""
    excluded: int
    """Samples lost to infrastructure failures; they count in no other figure."""
    correct: int
    """Valid samples with the correct answer."""
    mean_tokens: float | None
    """Mean response tokens per sample, with tool output."""
    calls_per_sample: float | None
    tool_error_ratio: float | None
    """Failed tool calls over all tool calls; null without calls."""
    truncated: int
    """Samples that a limit stopped before the answer."""
    answers: dict[str, int]
    """Final answer -> number of samples, the most frequent first. Samples without an answer do not count.

    With instructions of IFEval, an answer is the list of their results in order: strict, loose or no."""


class Evaluation(Figures):
    """One measurement of one model on one set of problems: `evaluation.json` of a stage and of `rstar2 eval`."""

    stage: str
    """Stage of the measured model; `eval` in a file of `rstar2 eval`."""
    attempt: int = 1
    """Attempt of the stage that measured the model."""
    step: int | None = None
    """Training steps of the stage for this model; null for a stage without training."""
    model: str = ""
    """Folder of the model, or its name at the endpoint."""
    endpoint: str | None = None
    """URL of the endpoint that served the model; null: engines of the job."""
    settings: dict[str, Any] = {}
    """All settings that determine the samples, with the model's fingerprint."""
    samples_per_problem: int | None = None
    temperature: float
    """Sampling temperature."""
    max_response_tokens: int
    """Maximum tokens of a response."""
    max_turns: int
    """Maximum assistant turns."""
    seconds: float
    """Wall time of the sampling in the last attempt, in seconds."""
    benchmarks: dict[str, Figures] = {}
    """Benchmark -> figures, in an Evaluate stage, in the order of its benchmarks."""
    problem_results: list[ProblemResult] = []
    """All problems, in the order of the files."""


StageType = Literal["SFT", "GRPO", "Filter", "Evaluate"]


class StageReport(RecordModel):
    """The row of one stage in the report. The fields of `Evaluation` have the same meaning here."""

    name: str
    type: StageType
    steps: int | None
    """Completed steps; null for a stage without steps."""
    attempts: int
    """Number of attempts; 0: not started."""
    pass_at_1: float | None
    hard_pass_at_1: float | None
    tool_error_ratio_correct: float | None
    mean_tokens: float | None
    truncated: float | None
    pass_at_1_se: float | None = None
    pass_at_1_before: float | None = None
    """pass_at_1 of the last earlier stage with the same problems and limits."""
    hard_pass_at_1_se: float | None = None
    hard_pass_at_1_before: float | None = None
    """hard_pass_at_1 of the last earlier stage with the same problems and limits."""
    temperature: float | None = None
    samples: int | None = None
    excluded: int | None = None
    outcome: str | None = None
    """completed, advanced, suspended or failed; null: running or not started."""
    reason: str | None = None
    slices: dict[str, SliceMetrics] = {}
    benchmarks: dict[str, SliceMetrics] = {}


class JobReport(RecordModel):
    """The report of a job: `report.json`."""

    job: str
    seconds: float
    """Wall time of the job over all its runs, in seconds."""
    seed: int
    stages: list[StageReport]


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write `evaluation.json` atomically."""
    write_record(path, evaluation)


def read_evaluation(path: Path) -> Evaluation:
    """Read `evaluation.json`. Raises FileNotFoundError, or pydantic's ValidationError with the name of the field."""
    return Evaluation.model_validate_json(path.read_text(encoding="utf-8"))


def write_record(path: Path, record: RecordModel) -> None:
    """Write a record as JSON with its nulls, atomically."""
    write_atomically(path, record.model_dump_json(indent=1) + "\n")
