"""Jobs that do not fit: the field that an issue names makes them fit."""

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from rstar2_train.capacity.fit import chosen_step, misfits, reference_shape, sequence_tokens, spec_warnings
from rstar2_train.capacity.hardware_profile import ProfileError, load_profile
from rstar2_train.capacity.layout import DEFAULT_TOKENS
from rstar2_train.capacity.model_shape import read_shape

EXAMPLES = Path(__file__).parents[3] / "examples"


def changed(**changes: Any) -> AgenticRLJob:
    """Return the 14B example with other values; `trainer__replicas=1` sets spec.trainer.replicas."""
    data = read_manifest(EXAMPLES / "qwen3-14b.yaml")
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = data["spec"]
        for parent in parents:
            target = target[parent]
        target[last] = value
    return load(data)


@pytest.mark.parametrize("name", ["qwen3-14b", "qwen3-4b-8gpu", "tiny", "smoke", "tiny-roc"])
def test_fit_examples_fit_their_hardware(name: str) -> None:
    """Every example fits the default hardware of its vendor."""
    job = load(read_manifest(EXAMPLES / f"{name}.yaml"))
    profile = load_profile({"AMD": "mi300x", "NVIDIA": "h100", "None": "cpu"}[job.spec.accelerator.vendor])
    assert [str(issue) for issue in misfits(job, read_shape(job.spec.model.source), profile)] == []
    assert spec_warnings(job) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"trainer__activationCheckpointing": "Never"}, "spec.trainer.activationCheckpointing"),
        ({"trainer__tokensPerMicroBatch": 400_000}, "spec.trainer.tokensPerMicroBatch"),
        ({"trainer__logprobChunkTokens": 60_000, "trainer__tokensPerMicroBatch": 60_000}, "spec.trainer"),
        ({"trainer__replicas": 1, "trainer__gpusPerReplica": 1}, "spec.trainer.replicas"),
        ({"model__source": "hf://Qwen/Qwen2.5-72B", "rollout__tensorParallel": 1}, "spec.rollout.tensorParallel"),
    ],
)
def test_fit_issue_names_the_field(changes: dict[str, Any], field: str) -> None:
    """A job that does not fit an H100 has an error at the field to change, with the value."""
    job = changed(**changes)
    issues = misfits(job, read_shape(job.spec.model.source), load_profile("h100"))
    assert any(issue.field.startswith(field) and "set it to" in issue.message for issue in issues), issues


def test_fit_named_replicas_make_it_fit() -> None:
    """The number of replicas in the message is the smallest that fits."""
    job = changed(trainer__replicas=1, trainer__gpusPerReplica=2)
    shape, profile = read_shape(job.spec.model.source), load_profile("h100")
    issue = next(each for each in misfits(job, shape, profile) if each.field == "spec.trainer.replicas")
    needed = int(issue.message.split("set it to ")[1].split()[0])
    fitting = changed(trainer__replicas=needed, trainer__gpusPerReplica=2)
    assert not [each for each in misfits(fitting, shape, profile) if each.field == "spec.trainer.replicas"]
    below = changed(trainer__replicas=needed - 1, trainer__gpusPerReplica=2)
    assert [each for each in misfits(below, shape, profile) if each.field == "spec.trainer.replicas"]


def test_fit_operator_assumes_the_largest_device() -> None:
    """The operator does not know the devices of its nodes: it warns only if the vendor's largest one is too small."""
    assert spec_warnings(changed(trainer__replicas=1, trainer__gpusPerReplica=2)) == []
    assert spec_warnings(changed(trainer__replicas=1, trainer__gpusPerReplica=1))


@pytest.mark.parametrize("name", ["tiny", "smoke", "tiny-roc"])
def test_chosen_step_on_the_cpu_is_that_of_its_ranks(name: str) -> None:
    """On the CPU no memory changes the micro-batch or the reductions, and the snapshot is in the step's memory."""
    job = load(read_manifest(EXAMPLES / f"{name}.yaml"))
    job.spec.trainer.tokens_per_micro_batch = None
    shape, profile = read_shape(job.spec.model.source), load_profile("cpu")
    stage = next(stage for stage in job.spec.stages if stage.learns)
    step = chosen_step(job, stage, shape, profile)
    assert step.tokens == max(DEFAULT_TOKENS, sequence_tokens(job, stage))
    assert not step.reduce_once
    assert step.snapshot_on_device


def test_fit_unknown_model_has_no_warning() -> None:
    """Without a shape there is nothing to compare."""
    assert spec_warnings(changed(model__source="pvc://models/secret")) == []


def test_profile_file_error_names_the_field(tmp_path: Path) -> None:
    """A profile file with a wrong field is rejected with its name."""
    file = tmp_path / "mine.json"
    file.write_text('{"device": "mine", "vendor": "AMD", "memoryBytes": -1}')
    with pytest.raises(ProfileError, match="memoryBytes"):
        load_profile(str(file))
    with pytest.raises(ProfileError, match="neither a hardware profile"):
        load_profile("gtx-1")


def test_fit_full_model_too_large_names_the_adapter() -> None:
    """If the moments of the whole model exceed one device and an adapter fits, the message states that."""
    sizes = {"trainer__replicas": 1, "trainer__gpusPerReplica": 1}
    full = changed(**sizes)
    shape, profile = read_shape(full.spec.model.source), load_profile("h100")
    issue = next(each for each in misfits(full, shape, profile) if each.field.startswith("spec.trainer"))
    assert "or set spec.trainer.lora" in issue.message
    adapted = changed(**sizes, trainer__lora={})
    assert not [each for each in misfits(adapted, shape, profile) if each.field.startswith("spec.trainer")]


@pytest.mark.parametrize(
    "forbids", [{"model__source": "hf://Qwen/Qwen3-30B-A3B"}, {"rollout__weightTransport": "Delta"}]
)
def test_fit_names_no_adapter_that_is_refused(forbids: dict[str, Any]) -> None:
    """A mixture of experts has none, and validation refuses one next to this transport."""
    full = changed(trainer__replicas=1, trainer__gpusPerReplica=2, **forbids)
    issues = misfits(full, read_shape(full.spec.model.source), load_profile("h100"))
    assert any(issue.field.startswith("spec.trainer") for issue in issues)
    assert not any("lora" in issue.message for issue in issues)


@pytest.mark.parametrize(
    ("reference", "is_base"),
    [
        ({"model": "Stage"}, True),
        ({"model": "Initial"}, True),
        ({"model": "Source", "source": "hf://Qwen/Qwen3-8B"}, True),
        ({"model": "Source", "source": "hf://Qwen/Qwen3-4B"}, False),
    ],
)
def test_base_of_an_adapter_is_no_second_model(reference: dict[str, str], is_base: bool) -> None:
    """The ranks compute a reference that is the base without the adapter."""
    data = read_manifest(EXAMPLES / "qwen3-8b-lora-1gpu.yaml")
    data["spec"]["model"]["source"] = "hf://Qwen/Qwen3-8B"
    stage = next(stage for stage in data["spec"]["stages"] if stage["type"] == "GRPO")
    stage["grpo"]["referenceKl"] = {"weight": 0.1, **reference}
    data["spec"]["stages"] = [stage]
    job = load(data)
    assert (reference_shape(job, job.spec.stages[0], read_shape("hf://Qwen/Qwen3-8B")) is None) is is_base
