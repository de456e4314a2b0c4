"""The condition PlanFits: a warning about memory that never changes the phase of a job."""

from pathlib import Path

from rstar2_operator.decide.plan_fits import plan_fits
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str, *, gpus: int | None = None, source: str = "") -> AgenticRLJob:
    """Return an example with another number of trainer GPUs, or another model."""
    data = read_manifest(EXAMPLES / f"{name}.yaml")
    if gpus is not None:
        data["spec"]["trainer"] |= {"replicas": 1, "gpusPerReplica": gpus}
    if source:
        data["spec"]["model"]["source"] = source
    return load(data)


def test_plan_fits_example_is_true() -> None:
    """The 14B example fits: the condition is True without a message."""
    (condition,) = plan_fits(example("qwen3-14b"))
    assert (condition["type"], condition["status"], condition["reason"]) == ("PlanFits", "True", "Fits")
    assert condition["message"] == ""


def test_plan_fits_too_few_gpus_names_the_field() -> None:
    """A 14B model on one GPU does not fit: the message names the field, and that the job runs."""
    (condition,) = plan_fits(example("qwen3-14b", gpus=1))
    assert (condition["status"], condition["reason"]) == ("False", "MemoryTooSmall")
    assert "spec.trainer.replicas: stage sft needs" in condition["message"]
    assert "the job runs all the same" in condition["message"]


def test_plan_fits_unknown_is_absent() -> None:
    """On the CPU, and for a model of unknown shape, there is no condition instead of a wrong one."""
    assert plan_fits(example("tiny")) == []
    assert plan_fits(example("qwen3-14b", source="pvc://models/secret")) == []
