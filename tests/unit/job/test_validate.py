"""Every problem of a manifest is found in one pass, with its field and what is allowed."""

import copy
from pathlib import Path

import pytest

from rstar2_train.job.load import read_manifest
from rstar2_train.job.stages import GRPO, Resample, resolve_grpo
from rstar2_train.job.validate import InvalidJob, check, load

GOOD = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "j", "creationTimestamp": None},
    "spec": {
        "model": {"source": "pvc://models/base"},
        "validation": {"data": "held.jsonl"},
        "grpo": {"promptsPerStep": 8, "clipHigh": 0.3},
        "stages": [
            {"name": "sft", "type": "SFT", "sft": {"data": "d.jsonl"}},
            {"name": "rl", "type": "GRPO", "grpo": {"data": "p.jsonl", "steps": 3}},
            {"name": "hard", "type": "Filter", "filter": {"data": "p.jsonl"}},
            {"name": "rl-hard", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 3}},
        ],
    },
}


def changed(path: str, value: object) -> dict:
    """GOOD with one value set at a dotted path (numbers index lists)."""
    data = copy.deepcopy(GOOD)
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    at: object = data
    for key in parents:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[last] = value
    return data


def problems(data: dict) -> list[str]:
    return [str(problem) for problem in check(data)[1]]


def test_good_has_no_problem() -> None:
    job, found = check(GOOD)
    assert found == []
    assert job is not None
    assert job.stage("rl").grpo.steps == 3
    with pytest.raises(KeyError, match="no stage 'nope'"):
        job.stage("nope")


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.stages.1.grpo.keepPerPrompt", 64, "spec.stages[1].grpo.keepPerPrompt is 64: cannot keep more"),
        ("spec.grpo.keepPerPrompt", 64, "spec.grpo.keepPerPrompt (for stage rl) is 64: cannot keep more"),
        ("spec.grpo.keepPerPromt", 8, "spec.grpo.keepPerPromt: unknown field; did you mean 'keepPerPrompt'?"),
        ("spec.grpo.clipLow", -1, "spec.grpo.clipLow is -1: should be greater than 0"),
        ("spec.grpo.learningRate", "fast", "spec.grpo.learningRate is 'fast': should be a valid number"),
        ("spec.stages.1.type", "PPO", "allowed: 'SFT', 'GRPO', 'Filter' or 'Evaluate'"),
        ("spec.stages.1.name", "sft", "already the name of stages[0]"),
        ("spec.stages.1.sft", {"data": "x"}, "spec.stages[1].sft: only allowed when type is SFT; this stage is GRPO"),
        ("spec.stages.1.grpo", None, "spec.stages[1].grpo: is required when type is GRPO"),
        ("spec.stages.1.grpo.steps", None, "spec.stages[1].grpo.steps: is required"),
        ("spec.stages.1.grpo.data", None, "spec.stages[1].grpo.data: give data, or dataFrom"),
        ("spec.stages.3.grpo.dataFrom", "rl", "must name an earlier Filter stage (hard)"),
        ("spec.stages.3.grpo.data", "p.jsonl", "give data or dataFrom, not both"),
        ("spec.stages.2.filter.dropSolved", 9, "at most samples, which is 8"),
        ("spec.grpo.updatesPerStep", 16, "at most promptsPerStep, which is 8"),
        ("spec.grpo.resample", {"minPerClass": 9}, "at most half of keepPerPrompt"),
        ("spec.accelerator.vendor", "none", "spec.trainer.gpusPerReplica is 8: must be 0"),
        ("spec.accelerator.vendor", "nvidia", "spec.accelerator.resource is 'amd.com/gpu'"),
        ("spec.storage", {"claimName": "a", "size": "1Gi"}, "not both"),
        ("spec.rollout.engineArgs", {"host": "0.0.0.0"}, "is set by the builder"),
        ("metadata.name", "Tiny", "lower-case letters"),
        (
            "spec.runtimePatches",
            [{"manager": "m", "roles": ["executor"], "env": [{"name": "A"}]}],
            "executors take only",
        ),
    ],
)
def test_each_error(path: str, value: object, expected: str) -> None:
    found = problems(changed(path, value))
    assert any(expected in problem and problem.startswith("error:") for problem in found), found
    with pytest.raises(InvalidJob):
        load(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.stages.0", {"name": "f", "type": "Filter", "filter": {"data": "p"}}, "no SFT stage comes before"),
        ("spec.judge.isolation", "none", "no sandbox"),
        ("spec.grpo.keepPerPrompt", 32, "drops nothing"),
        ("spec.validation", None, "nothing measures the model"),
    ],
)
def test_each_warning(path: str, value: object, expected: str) -> None:
    job, found = check(changed(path, value))
    assert job is not None
    assert any(expected in str(problem) and problem.warning for problem in found), found


def test_all_problems_in_one_pass() -> None:
    data = changed("spec.grpo.clipLow", -1)
    data["spec"]["stages"][1]["grpo"]["keepPerPrompt"] = 64
    data["spec"]["nonsense"] = 1
    data["spec"]["stages"][3]["name"] = "rl"
    data["spec"]["stages"][0]["type"] = "PPO"
    del data["spec"]["stages"][2]["name"]
    data["metadata"]["name"] = "Upper"
    found = problems(data)
    for expected in (
        "clipLow",
        "keepPerPrompt",
        "nonsense",
        "stages[3].name",
        "stages[0].type",
        "stages[2].name",
        "metadata.name",
    ):
        assert any(expected in problem for problem in found), (expected, found)


def test_stage_settings_lie_over_job_defaults() -> None:
    settings = resolve_grpo(
        GRPO(prompts_per_step=8, clip_high=0.3), GRPO(steps=5, clip_high=0.4, resample=Resample(mode="uniform"))
    )
    assert (settings.prompts_per_step, settings.clip_high, settings.steps) == (8, 0.4, 5)
    assert (settings.clip_low, settings.resample.mode, settings.keep_per_prompt) == (0.2, "uniform", 16)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[3] / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_valid(path: Path) -> None:
    job, found = check(read_manifest(path))
    assert job is not None, found
    assert found == []
