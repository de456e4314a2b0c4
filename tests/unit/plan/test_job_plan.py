"""The plan of a job: parts of a step, the effect of settings, and issues with their fields."""

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.objectives import ObjectiveSpec, Teacher, TeacherSpec
from rstar2_train.api.validation import load
from rstar2_train.capacity.hardware_profile import load_profile
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.plan.job_plan import JobPlan, plan_job
from rstar2_train.plan.rollout_time import engine_hardware
from rstar2_train.plan.step_time import transfer_time, update_time
from rstar2_train.simulation.hardware import load_hardware

EXAMPLE = Path(__file__).parents[3] / "examples" / "qwen3-14b.yaml"


def small(**spec: Any) -> AgenticRLJob:
    """Return the 14B example with one RL stage of few prompts, so that a simulation takes milliseconds."""
    data = read_manifest(EXAMPLE)
    data["spec"] |= spec
    data["spec"]["grpo"] |= {"promptsPerStep": 32, "rolloutsPerPrompt": 8, "keepPerPrompt": 4}
    data["spec"]["stages"] = [stage for stage in data["spec"]["stages"] if stage["name"] in ("sft", "rl-8k")]
    return load(data)


def planned(job: AgenticRLJob, hardware: str = "mi300x") -> JobPlan:
    """Return the plan of a job with the shape of its source."""
    return plan_job(job, read_shape(job.spec.model.source), load_profile(hardware))


def test_plan_step_is_the_sum_of_its_parts() -> None:
    """A synchronous step is rollouts, update and transfer; with staleness it is shorter."""
    values = planned(small()).as_json()["stages"]["rl-8k"]
    parts = values["rolloutSeconds"] + values["updateSeconds"] + values["transferSeconds"]
    assert values["stepSeconds"] == pytest.approx(parts)
    assert values["staleStepSeconds"] < values["stepSeconds"]
    assert values["stageSeconds"] == pytest.approx(300 * values["stepSeconds"])


def test_plan_counts_the_rollout_processes() -> None:
    """Two workers have half of the trajectories each, and together a little more memory than one process."""
    rollout = {"replicas": 20, "tensorParallel": 2}
    values = [planned(small(rollout=rollout | {"workers": count})).as_json()["stages"]["rl-8k"] for count in (1, 2)]
    assert [each["rolloutProcesses"] for each in values] == [1, 2]
    assert values[0]["rolloutProcessBytes"] / 2 < values[1]["rolloutProcessBytes"] < values[0]["rolloutProcessBytes"]


def test_plan_engine_costs_equal_the_simulators_model() -> None:
    """The profile gives the costs of the hardware model with which the scheduler was compared."""
    job = small()
    made = engine_hardware(job, read_shape(job.spec.model.source), load_profile("mi300x"))
    known = load_hardware("qwen3-14b-mi300x-tp2")
    for name in ("step_seconds", "sequence_seconds", "token_seconds", "prefill_seconds", "kv_tokens"):
        assert getattr(made, name) == pytest.approx(getattr(known, name), rel=0.07), name


def test_plan_without_rdma_warns_of_the_network() -> None:
    """Three nodes without RDMA spend the update on communication; with RDMA they do not."""
    accelerator = {"vendor": "AMD", "resource": "amd.com/gpu"}
    fields = [issue.field for issue in planned(small(accelerator=accelerator)).issues]
    assert "spec.accelerator.rdma" in fields
    accelerator["rdma"] = {"resource": "rdma/hca"}
    fields = [issue.field for issue in planned(small(accelerator=accelerator)).issues]
    assert "spec.accelerator.rdma" not in fields


@pytest.mark.parametrize("transport", ["Auto", "Delta", "Collective"])
def test_plan_experimental_transport_is_named(transport: str) -> None:
    """A transport that no GPU has run has a warning; the others have none."""
    issues = planned(small(rollout={"weightTransport": transport})).issues
    warned = [issue.message for issue in issues if issue.field == "spec.rollout.weightTransport"]
    assert [("experimental" in message) for message in warned] == [True] * (transport == "Collective")


def test_plan_recomputation_costs_a_third() -> None:
    """Activation checkpointing repeats the forward pass: 4 passes instead of 3."""
    times = []
    for recomputed in ("Always", "Never"):
        job = small(
            trainer={
                "replicas": 1,
                "gpusPerReplica": 8,
                "activationCheckpointing": recomputed,
                "tokensPerMicroBatch": 16384,
            }
        )
        shape = read_shape(job.spec.model.source)
        times.append(update_time(job, job.stage("rl-8k"), shape, load_profile("mi300x"), [4096] * 64))
    assert times[0].flops == pytest.approx(times[1].flops * 4 / 3)
    assert times[0].micro_batches == times[1].micro_batches == 2


def test_plan_delta_moves_fewer_bytes_than_folder() -> None:
    """A delta has the changed share of the weights, and a snapshot now and then; a collective reads it once."""
    sizes = {}
    for transport in ("Folder", "Delta", "Auto", "Collective"):
        job = small(rollout={"replicas": 20, "tensorParallel": 2, "weightTransport": transport})
        shape = read_shape(job.spec.model.source)
        time = transfer_time(job, job.stage("rl-8k"), shape, load_profile("mi300x"), engines=20)
        sizes[transport] = time.written + time.read
    assert sizes["Folder"] == 21 * 2 * read_shape("Qwen3-14B").parameters
    assert sizes["Auto"] == sizes["Delta"] < sizes["Folder"] / 20
    assert sizes["Collective"] == pytest.approx(sizes["Delta"] * 2 / 21)


def test_plan_that_does_not_fit_names_the_field() -> None:
    """A job without memory for one trajectory has an error, and no figures of the stages that need engines."""
    job = small(model={"source": "hf://Qwen/Qwen2.5-72B"}, rollout={"replicas": 4, "tensorParallel": 1})
    plan = planned(job, "h100")
    assert not plan.fits and list(plan.stages) == ["sft"]
    assert "spec.rollout.tensorParallel" in [issue.field for issue in plan.issues if not issue.warning]


def test_plan_adapter_of_a_mixture_is_an_error() -> None:
    """A known name has no folder whose config.json is checked before."""
    job = small(model={"source": "hf://Qwen/Qwen3-30B-A3B"}, trainer={"lora": {}, "gpusPerReplica": 8})
    assert "is not supported with LoRA" in str(planned(job).issues[0])


def test_plan_mean_tokens_replaces_the_assumption() -> None:
    """A measured mean length changes the sampled tokens and is named as its source."""
    job = small()
    plan = plan_job(job, read_shape(job.spec.model.source), load_profile("mi300x"), mean_tokens=1000)
    assert plan.as_json()["stages"]["rl-8k"]["sampledTokens"] == pytest.approx(1000 * 256, rel=0.2)
    assert plan.assumptions[0] == ("a trajectory samples 1,000 tokens on average", "--mean-tokens")


def test_plan_counts_the_engines_of_a_teacher() -> None:
    """The ranks hold no teacher; its engines have GPUs of their own, and one H100 does not suffice for 72B."""
    job = small(teacher={"replicas": 2, "tensorParallel": 4})
    job.spec.grpo.objective = ObjectiveSpec(type="Distillation", teacher=Teacher(source="hf://Qwen/Qwen3-32B"))
    plan = planned(job)
    values = plan.as_json()["stages"]["rl-8k"]
    assert values["teacherWeights"] == pytest.approx(2 * read_shape("Qwen3-32B").parameters / 4)
    assert values["teacherSeconds"] > 0 and "referenceWeights" not in values
    assert "in stages with a teacher 8 more" in plan.summary
    job.spec.teacher.engine_args = {"gpu_memory_utilization": 0.5, "dtype": "float32"}
    other = planned(job).as_json()["stages"]["rl-8k"]
    assert other["teacherWeights"] == pytest.approx(2 * values["teacherWeights"])
    assert other["teacherTokens"] < values["teacherTokens"] / 2
    job.spec.teacher = TeacherSpec()
    job.spec.grpo.objective = ObjectiveSpec(type="Distillation", teacher=Teacher(source="hf://Qwen/Qwen2.5-72B"))
    (issue,) = [issue for issue in planned(job, "h100").issues if issue.field == "spec.teacher.tensorParallel"]
    assert not issue.warning and "use more GPUs per engine" in issue.message


def test_plan_agent_has_pods_and_no_judge() -> None:
    """An agent's pods, programs and requests are counted; a job without an agent has the rows of the judge instead."""
    agent = {"command": ["agent"], "image": "agents:1", "replicas": 4, "maxConcurrentEpisodes": 8}
    requests = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    patch = {"manager": "lab", "roles": ["agent"], "resources": requests}
    plan = planned(small(agent=agent, runtimePatches=[patch]))
    values = plan.as_json()["stages"]["rl-8k"]
    figures = (values["agentPods"], values["agentPrograms"], values["agentCpu"], values["agentMemory"])
    assert figures == (4, 32, 2.0, 4 * 2**30)
    assert {row.section for row in plan.stages["rl-8k"]} >= {"Agent"} and "executorsNeeded" not in values
    warned = {issue.field: issue.message for issue in plan.issues}
    assert (
        "32 programs run at the same time" in warned["spec.agent.maxConcurrentEpisodes"]
        and "spec.executor.replicas" not in warned
    )
    assert "agentPods" not in plan.as_json()["stages"]["sft"]
    others = planned(small()).as_json()["stages"]["rl-8k"]
    assert "executorsNeeded" in others and "agentPods" not in others


def test_plan_agent_with_enough_programs_is_not_warned() -> None:
    """One program per trajectory that the engines admit is enough; without an image there are no pods."""
    plan = planned(small(agent={"command": ["agent"], "maxConcurrentEpisodes": 100_000}))
    assert not [issue for issue in plan.issues if issue.field == "spec.agent.maxConcurrentEpisodes"]
    values = plan.as_json()["stages"]["rl-8k"]
    assert "agentPods" not in values and values["agentPrograms"] == 100_000
