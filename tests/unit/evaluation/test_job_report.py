"""The report of a job: its keys and the comparison of stages."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from rstar2_train.api.contracts import CheckpointRef, Outcome, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.evaluation.job_report import build_report, format_duration, write_report
from rstar2_train.evaluation.records import (
    Evaluation,
    Figures,
    JobReport,
    SliceMetrics,
    read_evaluation,
    write_evaluation,
)
from rstar2_train.utils.files import write_atomically

FIRST_KEYS = [
    "name", "type", "steps", "attempts", "pass_at_1", "hard_pass_at_1", "tool_error_ratio_correct", "mean_tokens",
    "truncated",
]  # fmt: skip


@pytest.fixture
def job() -> AgenticRLJob:
    return AgenticRLJob.model_validate(
        {
            "metadata": {"name": "tiny"},
            "spec": {
                "seed": 7,
                "model": {"source": "./base"},
                "stages": [
                    {"name": "sft", "type": "SFT", "sft": {"data": "demos.jsonl"}},
                    {"name": "rl-1", "type": "GRPO", "grpo": {"data": "rl.jsonl", "steps": 40}},
                    {"name": "hard", "type": "Filter", "filter": {"data": "rl.jsonl"}},
                    {"name": "rl-2", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 20}},
                    {
                        "name": "eval",
                        "type": "Evaluate",
                        "evaluate": {"benchmarks": [{"name": "b", "data": "b.jsonl"}]},
                    },
                ],
            },
        }
    )


def evaluation(stage: str, score: float, *, temperature: float = 1.0, step: int | None = None) -> Evaluation:
    return Evaluation(
        stage=stage,
        step=step,
        temperature=temperature,
        max_response_tokens=160,
        max_turns=10,
        seconds=3,
        problems=100,
        samples=400,
        excluded=0,
        problem_set="abc",
        pass_at_1=score,
        pass_at_1_se=0.02,
        hard_pass_at_1=score / 2,
        hard_pass_at_1_se=0.03,
        tool_error_ratio=0.2,
        tool_error_ratio_correct=0.1,
        calls_per_sample=1.5,
        turns=2.5,
        mean_tokens=42.25,
        truncated=0.05,
        no_answer=0.06,
        slices={"L1": SliceMetrics(problems=50, samples=200, pass_at_1=score, pass_at_1_se=0.01)},
    )


def finish(state: Path, stage: str, result: Evaluation | None, *, step: int = 40, attempts: int = 1) -> None:
    folder = JobState(state).stage(stage)
    write_atomically(folder.attempt_file, json.dumps({"attempt": attempts}))
    reference = CheckpointRef(path=f"stages/{stage}/checkpoints/step-{step:06d}", step=step)
    outcome = Outcome(stage=stage, attempt=attempts, outcome="completed", reason="StepsReached", checkpoint=reference)
    write_model(folder.outcome_file, outcome)
    if result is not None:
        write_evaluation(folder.evaluation_file, result)


def test_build_report_of_unfinished_job(tmp_path: Path, job: AgenticRLJob) -> None:
    """The report of an unfinished job has its keys in order, and nulls for pending stages."""
    finish(tmp_path, "sft", evaluation("sft", 0.25, step=1300), step=1300)
    finish(tmp_path, "rl-1", evaluation("rl-1", 0.75), attempts=2)
    finish(tmp_path, "hard", None)
    write_report(tmp_path, build_report(tmp_path, job, seconds=61.5))
    written = json.loads(JobState(tmp_path).report_file.read_text())
    assert list(written) == ["job", "seconds", "seed", "stages"]
    assert (written["job"], written["seconds"], written["seed"]) == ("tiny", 61.5, 7)
    rows = written["stages"]
    assert all(list(row)[: len(FIRST_KEYS)] == FIRST_KEYS for row in rows)
    assert [[row[key] for key in FIRST_KEYS] for row in rows] == [
        ["sft", "SFT", 1300, 1, 0.25, 0.125, 0.1, 42.25, 0.05],
        ["rl-1", "GRPO", 40, 2, 0.75, 0.375, 0.1, 42.25, 0.05],
        ["hard", "Filter", None, 1, None, None, None, None, None],
        ["rl-2", "GRPO", None, 0, None, None, None, None, None],
        ["eval", "Evaluate", None, 0, None, None, None, None, None],
    ]
    assert rows[1]["slices"]["L1"]["pass_at_1"] == 0.75
    assert JobReport.model_validate_json(JobState(tmp_path).report_file.read_text()).model_dump(mode="json") == written


def test_build_report_compares_with_last_comparable_stage(tmp_path: Path, job: AgenticRLJob) -> None:
    """A stage is compared with the last one that has the same problems and limits."""
    finish(tmp_path, "sft", evaluation("sft", 0.25))
    finish(tmp_path, "rl-1", evaluation("rl-1", 0.75))
    finish(tmp_path, "hard", None)
    finish(tmp_path, "rl-2", evaluation("rl-2", 0.8))
    finish(tmp_path, "eval", evaluation("eval", 0.9, temperature=0.6))
    rows = build_report(tmp_path, job, seconds=1).stages
    assert [row.pass_at_1_before for row in rows] == [None, 0.25, None, 0.75, None]
    assert [row.hard_pass_at_1_before for row in rows] == [None, 0.125, None, 0.375, None]


def test_build_report_has_scores_of_benchmarks(tmp_path: Path, job: AgenticRLJob) -> None:
    """The report has the short record of each benchmark; one without valid samples is omitted."""
    known = Figures(problems=2, samples=8, pass_at_1=0.5, pass_at_1_se=0.1, mean_tokens=7)
    unknown = Figures(problems=2, samples=0, pass_at_1=None, pass_at_1_se=None)
    benchmarks = {"b": known, "lost": unknown}
    finish(tmp_path, "eval", evaluation("eval", 0.9).model_copy(update={"benchmarks": benchmarks}))
    row = build_report(tmp_path, job, seconds=1).stages[-1]
    assert row.benchmarks == {"b": SliceMetrics(problems=2, samples=8, pass_at_1=0.5, pass_at_1_se=0.1)}


def test_read_evaluation_of_earlier_version(tmp_path: Path) -> None:
    """A job that was started by an earlier version has files without the fields of each benchmark and problem."""
    path = tmp_path / "evaluation.json"
    fields = evaluation("rl-1", 0.5).model_dump(
        mode="json", exclude={"confidence", "model", "endpoint", "settings", "samples_per_problem", "problem_results"}
    )
    benchmark = {"problems": 2, "samples": 8, "pass_at_1": 0.5, "pass_at_1_se": 0.1}
    path.write_text(json.dumps(fields | {"benchmarks": {"b": benchmark}}))
    assert read_evaluation(path).benchmarks["b"].pass_at_1 == 0.5


def test_read_evaluation_round_trips_and_rejects_damage(tmp_path: Path) -> None:
    """A written evaluation is read back. A damaged one is an error with the field."""
    path = tmp_path / "evaluation.json"
    written = evaluation("rl-1", 0.5)
    write_evaluation(path, written)
    assert read_evaluation(path) == written
    path.write_text(path.read_text().replace('"pass_at_1":', '"pass_at_one":', 1))
    with pytest.raises(ValidationError, match="pass_at_1"):
        read_evaluation(path)


@pytest.mark.parametrize(("seconds", "text"), [(12.7, "12 s"), (200, "3 min 20 s"), (3725, "1 h 02 min")])
def test_format_duration_uses_two_units(seconds: float, text: str) -> None:
    """A duration has at most two units."""
    assert format_duration(seconds) == text
