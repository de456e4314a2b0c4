"""Every problem of a manifest is found in one pass, with its field and what is allowed."""

from pathlib import Path

import pytest

from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.stages import GRPODefaults, ResampleSpec, resolve_grpo
from rstar2_train.api.validation import check, load
from tests.support.example_manifests import MANIFESTS
from tests.support.manifests import FAULTS, FINE, GOOD, changed


def problems(data: dict) -> list[str]:
    return [str(problem) for problem in check(data)[1]]


def test_good_has_no_problem() -> None:
    job, found = check(GOOD)
    assert found == []
    assert job is not None
    assert job.stage("rl").grpo.steps == 3
    with pytest.raises(KeyError, match="no stage 'nope'"):
        job.stage("nope")


@pytest.mark.parametrize(("path", "value"), FINE)
def test_good_stays_good(path: str, value: object) -> None:
    job, found = check(changed(path, value))
    assert job is not None, found
    assert [problem for problem in found if not problem.warning] == []


def test_the_vendor_names_its_resource() -> None:
    assert load(GOOD).spec.accelerator.resource == "amd.com/gpu"


@pytest.mark.parametrize(("path", "value", "expected", "_online"), FAULTS)
def test_each_error(path: str, value: object, expected: str, _online: str | None) -> None:
    found = problems(changed(path, value))
    assert any(expected in problem and problem.startswith("error:") for problem in found), found
    with pytest.raises(InvalidJob):
        load(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.stages.0", {"name": "f", "type": "Filter", "filter": {"data": "p"}}, "there is no SFT stage before"),
        ("spec.executor.isolation", "None", "without a sandbox"),
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


def test_a_jobs_name_begins_with_a_letter_as_those_of_its_services_must() -> None:
    (found,) = problems(changed("metadata.name", "4b-run"))
    assert "metadata.name" in found and "the first character is a letter" in found


def test_stage_settings_lie_over_job_defaults() -> None:
    settings = resolve_grpo(
        GRPODefaults(prompts_per_step=8, clip_high=0.3),
        GRPODefaults(steps=5, clip_high=0.4, resample=ResampleSpec(mode="Uniform")),
    )
    assert (settings.prompts_per_step, settings.clip_high, settings.steps) == (8, 0.4, 5)
    assert (settings.clip_low, settings.resample.mode, settings.keep_per_prompt) == (0.2, "Uniform", 16)


@pytest.mark.parametrize(("own", "others"), [({"data": "a"}, {"data_from": "f"}), ({"data_from": "f"}, {"data": "a"})])
def test_a_stage_that_names_its_problems_takes_none_from_the_defaults(own: dict, others: dict) -> None:
    settings = resolve_grpo(GRPODefaults(**others), GRPODefaults(**own))
    assert {"data": settings.data, "data_from": settings.data_from} == {"data": None, "data_from": None, **own}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_examples_are_valid(path: Path) -> None:
    job, found = check(read_manifest(path))
    assert job is not None, found
    assert found == []
