"""Validation: every issue of a manifest in one pass, with field, value and what is allowed."""

from pathlib import Path

import pytest

from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.objectives import ObjectiveSpec
from rstar2_train.api.sources import CLAIM, HUB, resolved_sources, sources
from rstar2_train.api.stages import GRPODefaults, ResampleSpec, resolve_grpo
from rstar2_train.api.validation import check, load
from tests.support.example_manifests import MANIFESTS
from tests.support.good_manifest import GOOD, changed
from tests.support.manifests import FAULTS, FINE, LOCAL

DISTILLATION = {"type": "Distillation", "teacher": {"source": "pvc://models/teacher"}}


def problems(data: dict) -> list[str]:
    return [str(problem) for problem in check(data)[1]]


def test_validation_valid_job_has_no_issue() -> None:
    """The valid manifest has neither errors nor warnings."""
    job, issues = check(GOOD)
    assert issues == []
    assert job is not None
    assert job.stage("rl").grpo.steps == 3
    with pytest.raises(KeyError, match="no stage 'nope'"):
        job.stage("nope")


@pytest.mark.parametrize(("path", "value"), [*FINE, *LOCAL])
def test_validation_valid_changes_have_no_error(path: str, value: object) -> None:
    """Every valid change of it has no error."""
    job, issues = check(changed(path, value))
    assert job is not None, issues
    assert [problem for problem in issues if not problem.warning] == []


def test_validation_default_accelerator_is_amd() -> None:
    """Without spec.accelerator a job requests amd.com/gpu."""
    assert load(GOOD).spec.accelerator.resource == "amd.com/gpu"


@pytest.mark.parametrize(("path", "value", "expected", "_online"), FAULTS)
def test_validation_fault_names_field_value_and_rule(
    path: str, value: object, expected: str, _online: str | None
) -> None:
    """Each fault is an error with field, value and rule."""
    issues = problems(changed(path, value))
    assert any(expected in problem and problem.startswith("error:") for problem in issues), issues
    with pytest.raises(InvalidJob):
        load(changed(path, value))


@pytest.mark.parametrize("of_job", [{}, None])
def test_validation_null_lora_of_a_stage_is_refused(of_job: dict | None) -> None:
    """A stage without `lora` trains the adapter of the job, and the API server removes null."""
    data = changed("spec.trainer.lora", of_job)
    data["spec"]["stages"][1]["trainer"] = {"lora": None}
    expected = "spec.stages[1].trainer.lora: null does not switch LoRA off"
    assert any(expected in problem for problem in problems(data)) is (of_job is not None)


def test_validation_stage_removes_the_kl_term_of_its_job() -> None:
    """Weight 0 is no term; null is the same as unset, so it is refused where the job has a value."""
    data = changed("spec.grpo", {"referenceKl": {"weight": 0.1, "model": "Stage"}, "collapse": {"enabled": False}})
    data["spec"]["stages"][1]["grpo"]["referenceKl"] = {"weight": 0, "estimator": "K1"}
    job, issues = check(data)
    assert job is not None and any("referenceKl.estimator is 'K1': has no effect" in str(issue) for issue in issues)
    without, inherited = (job.grpo_settings(job.stage(name)) for name in ("rl", "rl-hard"))
    assert not without.has_reference and inherited.has_reference

    data["spec"]["stages"][1]["grpo"] |= {"referenceKl": None, "collapse": None, "gradClip": None}
    refused = [problem for problem in problems(data) if "null is the same as unset" in problem]
    assert [problem.split(":")[1] for problem in refused] == [
        " spec.stages[1].grpo.collapse", " spec.stages[1].grpo.referenceKl"
    ]  # fmt: skip
    assert "set {}, or" in refused[0] and "set {weight: 0}, or" in refused[1]


@pytest.mark.parametrize(
    ("of_job", "of_stage", "field"),
    [
        ({"weight": 0}, None, "spec.grpo"),
        (None, {"weight": 0}, "spec.stages[1].grpo"),
        ({"weight": 0.1}, {"weight": 0}, ""),
    ],
)
def test_validation_kl_weight_0_removes_a_term(of_job: dict | None, of_stage: dict | None, field: str) -> None:
    """Weight 0 where there is no term to remove has no effect."""
    data = changed("spec.grpo", {"referenceKl": of_job} if of_job else {})
    data["spec"]["stages"][1]["grpo"] |= {"referenceKl": of_stage} if of_stage else {}
    assert [problem.split(" is ")[0] for problem in problems(data)] == (
        [f"warning: {field}.referenceKl.weight"] if field else []
    )


def test_validation_lora_of_the_job_without_a_stage_is_a_warning() -> None:
    """Each stage that trains has its own adapter."""
    data = changed("spec.trainer.lora", {})
    data["spec"]["stages"][0]["sft"]["learningRate"] = 1e-4
    for index, unused in ((0, False), (1, False), (3, True)):
        data["spec"]["stages"][index]["trainer"] = {"lora": {"rank": 8}}
        assert any("spec.trainer.lora: has no effect" in problem for problem in problems(data)) is unused


@pytest.mark.parametrize(
    ("stages", "rollout", "fields"),
    [
        ([0, 1, 3], {"weightProbe": False}, ["weightProbe"]),
        ([1], {"weightProbe": False}, ["weightProbe"]),
        ([0], {"weightProbe": False}, []),
        ([1], {"weightProbe": True}, []),
        ([1], {"weightTransport": "Auto", "weightSnapshotEvery": 5}, []),
        ([1, 3], {"weightTransport": "Auto", "weightSnapshotEvery": 5}, ["weightSnapshotEvery"]),
        ([], {"weightTransport": "Delta", "weightSnapshotEvery": 5}, []),
    ],
)
def test_validation_names_unused_settings_of_weights(stages: list[int], rollout: dict, fields: list[str]) -> None:
    """An adapter is always probed and always sent whole; a stage without LoRA uses the settings."""
    data = changed("spec.rollout", {**GOOD["spec"]["rollout"], **rollout})
    for index in stages:
        data["spec"]["stages"][index]["trainer"] = {"lora": {}}
    assert [issue.field for issue in check(data)[1] if "weight" in issue.field] == [
        f"spec.rollout.{field}" for field in fields
    ]


def test_validation_settings_of_weights_need_a_grpo_stage() -> None:
    """Without updates no version follows the first one."""
    rollout = {"weightTransport": "Delta", "weightSnapshotEvery": 5, "weightProbe": True}
    data = changed("spec.rollout", {**GOOD["spec"]["rollout"], **rollout})
    data["spec"]["stages"] = data["spec"]["stages"][:1]
    messages = {issue.field: issue.message for issue in check(data)[1] if "weight" in issue.field}
    assert set(messages.values()) == {"has no effect: the job has no GRPO stage"}
    assert messages.keys() == {f"spec.rollout.{name}" for name in rollout}


@pytest.mark.parametrize(("stages", "unused"), [(slice(0, 1), True), (slice(0, 2), False)])
def test_validation_continue_of_the_job_needs_two_stages(stages: slice, unused: bool) -> None:
    """The first training stage starts a new adapter."""
    data = changed("spec.trainer.lora", {"start": "Continue"})
    data["spec"]["stages"] = data["spec"]["stages"][stages]
    assert any(issue.field == "spec.trainer.lora.start" for issue in check(data)[1]) is unused


@pytest.mark.parametrize("rank", [True, 8.0, "8", None])
def test_validation_rank_is_an_integer(rank: object) -> None:
    """Values that only equal a rank, which a schema with a list of ranks would accept."""
    assert any(
        "spec.trainer.lora.rank" in problem for problem in problems(changed("spec.trainer.lora", {"rank": rank}))
    )


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.stages.0", {"name": "f", "type": "Filter", "filter": {"data": "p"}}, "there is no SFT stage before"),
        ("spec.executor.isolation", "None", "without a sandbox"),
        ("spec.trainer", {}, "spec.trainer.resources.requests: requests neither cpu nor memory"),
        ("spec.rollout", {}, "spec.rollout.resources.requests: requests neither cpu nor memory"),
        ("spec.grpo.keepPerPrompt", 32, "drops nothing"),
        ("spec.validation", None, "nothing measures the model"),
        (
            "spec.grpo",
            {"importanceCorrection": {"cap": 5}},
            "spec.grpo.importanceCorrection.cap is 5.0: has no effect",
        ),
        (
            "spec.grpo.advanceWhen",
            {"allCorrectAbove": 1, "windowSteps": 2},
            "spec.grpo.advanceWhen.windowSteps is 2: has no effect: no trigger is set",
        ),
        ("spec.grpo.objective", {"overlongBufferRatio": 0.2, "overlongPenalty": 0}, "0 shapes no reward"),
        ("spec.secretRefs", {"teacher": {"name": "t"}}, "no objective has teacher.endpoint"),
        (
            "spec.rewards",
            [{"name": "r", "relativeTolerance": 0.01}],
            "is 0.01: has no effect if type is Math: it is for Nu",
        ),
        ("spec.rewards", [{"name": "r", "type": "Choice", "needsUnit": True}], "has no effect if type is Choice"),
        ("spec.rewards", [{"name": "r", "type": "Exact", "correctFrom": 0.5}], "it is for Program and Tests"),
        ("spec.stages.1", {"name": "two", "type": "SFT", "sft": {"data": "d"}}, "the model of stage sft: an SFT stage"),
        (
            "spec.stages.0.sft",
            {"data": "d", "schedule": "Constant", "minLearningRateRatio": 0.1},
            "spec.stages[0].sft.minLearningRateRatio is 0.1: has no effect",
        ),
        (
            "spec.stages.0.sft",
            {"data": "d", "warmupRatio": 1, "minLearningRateRatio": 0.1},
            "minLearningRateRatio is 0.1: has no effect: with warmupRatio 1",
        ),
        ("spec.validation.sampling", {"temperature": 0}, "spec.validation.samples is 4: repeats each sample"),
        ("spec.stages.2.filter.sampling", {"temperature": 0}, "filter.samples is 8: repeats each sample"),
        ("spec.validation.sampling", {"temperature": 0, "topP": 0.9}, "spec.validation.sampling.topP is 0.9: has no"),
        (
            "spec.stages.2.filter.sampling",
            {"temperature": 0, "topP": 0.9},
            "filter.sampling.topP is 0.9: has no effect",
        ),
        (
            "spec.trainer.lora",
            {"targetModules": ["q_proj", "Attention"]},
            "spec.trainer.lora.targetModules[0] is 'q_proj': has no effect",
        ),
        ("spec.rollout.weightSnapshotEvery", 5, "spec.rollout.weightSnapshotEvery is 5: has no effect: with weightTr"),
        (
            "spec.stages.0.trainer",
            {"lora": {"start": "Continue"}},
            "spec.stages[0].trainer.lora.start is 'Continue': has no effect: no training stage precedes",
        ),
    ],
)
def test_validation_probable_mistake_is_a_warning(path: str, value: object, expected: str) -> None:
    """Each probable mistake is a warning, and the job is valid."""
    job, issues = check(changed(path, value))
    assert job is not None
    assert any(expected in str(problem) and problem.warning for problem in issues), issues


@pytest.mark.parametrize(
    ("grpo", "field", "reason"),
    [
        ({"objective": {"clipHigh": 0.3}}, "objective.clipHigh", "raise updatesPerStep"),
        ({"objective": {"type": "SAPO", "positiveTemperature": 2}}, "objective.positiveTemperature", "ratio is 1"),
        ({"objective": {"type": "DPPO", "maxDivergence": 0.1}}, "objective.maxDivergence", "ratio is 1"),
        ({"objective": {"type": "DPPO", "maxRatio": 2}}, "objective.maxRatio", "ratio is 1"),
        ({"objective": {"type": "DPPO", "maxRatio": 0.5}}, "", ""),
        ({"objective": {"clipHigh": 0.28}}, "", ""),
        ({"dynamicSampling": True, "objective": DISTILLATION}, "dynamicSampling", "every group trains with a teacher"),
        ({"dynamicSampling": True, "objective": DISTILLATION | {"truncated": "Mask"}}, "", ""),
        ({"dynamicSampling": True}, "", ""),
        ({"keepPerPrompt": 32, "resample": {"mode": "Uniform"}}, "resample.mode", "every rollout is kept"),
        ({"importanceCorrection": {"cap": 5}}, "importanceCorrection.cap", "the correction is off"),
        ({"importanceCorrection": {"cap": 5, "enabled": True}}, "", ""),
        # The cap is also that of the effective sample size.
        ({"importanceCorrection": {"cap": 5, "enabled": False}, "maxStaleness": 1}, "", ""),
        (
            {
                "importanceCorrection": {"cap": 5, "enabled": False},
                "maxStaleness": 1,
                "collapse": {"minEffectiveSampleSize": 0},
            },
            "importanceCorrection.cap",
            "the correction is off",
        ),
        ({"collapse": {"enabled": False, "drop": 0.5}}, "collapse.drop", "set enabled: true"),
        ({"collapse": {"minEffectiveSampleSize": 0.5}}, "collapse.minEffectiveSampleSize", "maxStaleness is above 0"),
        ({"collapse": {"minEffectiveSampleSize": 0.5}, "maxStaleness": 1}, "", ""),
        ({"collapse": {"windowSteps": 50}}, "collapse.windowSteps", "larger than the steps"),
        ({"collapse": {"windowSteps": 21, "drop": 0.5}, "maxStaleness": 1}, "collapse.drop", "than two windows"),
        ({"collapse": {"windowSteps": 21}}, "collapse.windowSteps", "than two windows"),
        ({"collapse": {"drop": 1}}, "collapse.drop", "no reward falls below 0"),
        # The other condition of the trigger remains.
        ({"collapse": {"drop": 1}, "maxStaleness": 1}, "", ""),
        (
            {"collapse": {"windowSteps": 21, "minEffectiveSampleSize": 0}, "maxStaleness": 1},
            "collapse.windowSteps",
            "than two windows",
        ),
        ({"collapse": {"drop": 0.99}}, "", ""),
        ({"advanceWhen": {"minSteps": 5}}, "advanceWhen.minSteps", "set truncationBelow, or allCorrectAbove"),
        ({"advanceWhen": {"truncationBelow": 0.1, "minSteps": 40}}, "advanceWhen.truncationBelow", "the stage ends"),
        ({"advanceWhen": {"allCorrectAbove": 1}}, "advanceWhen.allCorrectAbove", "no share is above 1"),
        ({"advanceWhen": {"allCorrectAbove": 0.7, "minSteps": 10}}, "advanceWhen.minSteps", "raise minSteps"),
        ({"advanceWhen": {"allCorrectAbove": 0.7, "minSteps": 11}}, "", ""),
        ({"resetOptimizer": True}, "resetOptimizer", "starts with a new optimiser"),
        ({"routerReplay": False}, "", ""),
    ],
)
def test_validation_setting_without_effect_is_a_warning(grpo: dict, field: str, reason: str) -> None:
    """A setting that another one makes useless is named, in the stage or in spec.grpo; one with an effect is not."""
    for at in ("spec.grpo", "spec.stages[0].grpo"):
        data = changed("spec.stages", [{"name": "rl", "type": "GRPO", "grpo": {"data": "/data/p.jsonl", "steps": 40}}])
        data["spec"]["grpo"] = {}
        (data["spec"]["grpo"] if at == "spec.grpo" else data["spec"]["stages"][0]["grpo"]).update(grpo)
        job, issues = check(data)
        assert job is not None, issues
        unused = [issue for issue in issues if issue.message.startswith("has no effect")]
        assert [issue.field for issue in unused] == ([f"{at}.{field}"] if field else [])
        assert all(reason in issue.message and issue.warning for issue in unused)


def test_validation_setting_of_the_job_takes_effect_in_one_stage() -> None:
    """A warm-up is only without effect in a stage that continues the optimiser; spec.grpo needs a GRPO stage."""
    data = changed("spec.grpo", {"warmupSteps": 5, "collapse": {"minEffectiveSampleSize": 0.5}})
    data["spec"]["stages"][3]["grpo"] |= {"maxStaleness": 1}
    data["spec"]["stages"][1]["grpo"]["steps"] = data["spec"]["stages"][3]["grpo"]["steps"] = 40
    assert problems(data) == []
    data["spec"]["stages"][3]["grpo"]["warmupSteps"] = 5
    (problem,) = problems(data)
    assert problem.startswith("warning: spec.stages[3].grpo.warmupSteps is 5: has no effect: the stage continues")
    data["spec"]["stages"][3]["grpo"]["resetOptimizer"] = True
    assert problems(data) == []

    data["spec"]["stages"] = data["spec"]["stages"][:1]
    data["spec"]["grpo"]["maxPromptTokens"] = 99
    fields = [problem.split(":")[1] for problem in problems(data) if "the job has no GRPO stage" in problem]
    assert fields == [" spec.grpo.warmupSteps is 5", " spec.grpo.collapse"]


def test_validation_setting_that_no_stage_inherits_is_a_warning() -> None:
    """A value of spec.grpo without a stage that has it; of data and dataFrom a stage sets one for both."""
    data = changed("spec.grpo", {"data": "/data/p.jsonl", "steps": 3, "temperature": 0.9})
    assert [issue.split(":")[1] for issue in problems(data) if "every GRPO stage" in issue] == [
        " spec.grpo.data is '/data/p.jsonl'", " spec.grpo.steps is 3"
    ]  # fmt: skip
    del data["spec"]["stages"][1]["grpo"]["steps"], data["spec"]["stages"][1]["grpo"]["data"]
    assert problems(data) == []


def test_validation_replay_of_experts_with_an_adapter_is_unused() -> None:
    """LoRA trains dense models only; in a stage without it the model may be a mixture."""
    data = changed("spec.stages.3.trainer", {"lora": {}})
    data["spec"]["grpo"] = {"routerReplay": False}
    assert problems(data) == []
    data["spec"]["stages"][1]["trainer"] = {"lora": {}}
    (problem,) = problems(data)
    assert "spec.grpo.routerReplay is False: has no effect: a model with LoRA is dense" in problem


def test_validation_reports_all_errors_in_one_pass() -> None:
    """All errors of a manifest are reported together."""
    data = changed("spec.grpo.objective.clipLow", -1)
    data["spec"]["stages"][1]["grpo"]["keepPerPrompt"] = 64
    data["spec"]["nonsense"] = 1
    data["spec"]["stages"][3]["name"] = "rl"
    data["spec"]["stages"][0]["type"] = "PPO"
    del data["spec"]["stages"][2]["name"]
    data["metadata"]["name"] = "Upper"
    issues = problems(data)
    for expected in (
        "clipLow",
        "keepPerPrompt",
        "nonsense",
        "stages[3].name",
        "stages[0].type",
        "stages[2].name",
        "metadata.name",
    ):
        assert any(expected in problem for problem in issues), (expected, issues)


def test_validation_job_name_starts_with_a_letter() -> None:
    """The name of a job starts with a letter, as the names of its Services must."""
    (issue,) = problems(changed("metadata.name", "4b-run"))
    assert "metadata.name" in issue and "the first character is a letter" in issue


def test_resolve_grpo_stage_overrides_job_overrides_default() -> None:
    """A GRPO value comes from the stage, else from spec.grpo, else from the defaults."""
    settings = resolve_grpo(
        GRPODefaults(prompts_per_step=8, grad_clip=0.3, objective=ObjectiveSpec(type="GSPO", clip_low=1e-3)),
        GRPODefaults(
            steps=5, grad_clip=0.4, resample=ResampleSpec(mode="Uniform"), objective=ObjectiveSpec(clip_low=0.1)
        ),
    )
    assert (settings.prompts_per_step, settings.grad_clip, settings.steps) == (8, 0.4, 5)
    assert (settings.learning_rate, settings.resample.mode, settings.keep_per_prompt) == (1e-6, "Uniform", 16)
    assert (settings.objective.type, settings.objective.clip_low, settings.objective.clip_high) == ("GRPO", 0.1, 0.28)


@pytest.mark.parametrize(("own", "others"), [({"data": "a"}, {"data_from": "f"}), ({"data_from": "f"}, {"data": "a"})])
def test_resolve_grpo_data_of_a_stage_replaces_both_fields(own: dict, others: dict) -> None:
    """A stage with data or dataFrom inherits neither of them."""
    settings = resolve_grpo(GRPODefaults(**others), GRPODefaults(**own))
    assert {"data": settings.data, "data_from": settings.data_from} == {"data": None, "data_from": None, **own}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_validation_examples_have_no_issue(path: Path) -> None:
    """Every manifest of examples/ is valid without warnings, and its sources exist where its first lines run it."""
    job, issues = check(read_manifest(path))
    assert job is not None, issues
    assert issues == []
    start = path.read_text().split("apiVersion:")[0]
    if "rstar2 run" in start:
        assert [source for source in sources(job) if source.value.startswith((HUB, CLAIM))] == []
    if "kubectl apply" in start:
        resolved_sources(job, "/state")


@pytest.mark.parametrize(
    ("path", "value", "replacement"),
    [
        ("spec.deadlines", {"pendingSeconds": 60}, "spec.pendingDeadlineSeconds or spec.activeDeadlineSeconds"),
        ("spec.judge.executors", 2, "spec.executor.replicas"),
        ("spec.stages.0.trainerReplicas", 2, "trainer.replicas"),
        ("spec.secretRefs.registryPrefix", "mirror", "spec.registryPrefix"),
        ("spec.grpo.clipLow", 0.1, "objective.clipLow"),
        ("spec.stages.1.grpo.clipHigh", 0.1, "objective.clipHigh"),
    ],
)
def test_validation_renamed_field_names_its_replacement(path: str, value: object, replacement: str) -> None:
    """The error of a renamed field has the path of the field that replaces it."""
    (issue,) = problems(changed(path, value))
    assert issue.endswith(f"unknown field; did you mean {replacement}?")


def test_validation_wrong_vendor_has_one_error() -> None:
    """A wrong vendor hides the rules that depend on it."""
    (issue,) = problems(changed("spec.accelerator", {"vendor": "amd"}))
    assert issue == "error: spec.accelerator.vendor is 'amd': allowed: 'AMD', 'NVIDIA' or 'None'"


def test_validation_agent_excludes_other_tools_and_rewards() -> None:
    """An agent's program has the tools and posts the reward: a job with others would not use them."""
    data = changed("spec.agent", {"command": ["python", "agent.py"]})
    data["spec"] |= {"tools": [{"name": "execute_python_code_with_standard_io"}], "rewards": [{"name": "r"}]}
    issues = problems(data)
    assert [issue.split(":")[1].strip() for issue in issues if "together with agent" in issue] == [
        "spec.tools",
        "spec.rewards",
    ], issues


@pytest.mark.parametrize("lora", [None, {}])
def test_validation_warns_of_offload_on_the_cpu(lora: dict | None) -> None:
    """The weights are in host memory already. On a GPU the field has an effect, with an adapter too."""
    data = changed("spec.trainer", {"gpusPerReplica": 0, "offload": True, "lora": lora})
    for vendor, expected in (("None", ["spec.trainer.offload"]), ("AMD", [])):
        data["spec"]["accelerator"] = {"vendor": vendor}
        assert [issue.field for issue in check(data)[1] if "offload" in issue.field] == expected


@pytest.mark.parametrize("source", ["s3://bucket/base", "gs://bucket/base"])
def test_validation_warns_of_a_server_without_sources(source: str) -> None:
    """The server of s3:// sources is not ignored silently; the default that the API server fills in is no setting."""
    filled = changed("spec.storage", {"endpointUrl": "http://s3:9000", "addressing": "Path"})
    filled["spec"]["model"]["source"] = source
    warnings = {issue.field for issue in check(filled)[1] if issue.field.startswith("spec.storage")}
    assert warnings == (set() if source.startswith("s3") else {"spec.storage.endpointUrl"})
