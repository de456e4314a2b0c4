"""The plan of one device that trainer and engine share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from rstar2_train.capacity.hardware_profile import load_profile
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.plan.job_plan import JobPlan, plan_job
from rstar2_train.plan.shared_device import HOST_LINK, SharedDevice

EXAMPLE = Path(__file__).parents[3] / "examples" / "qwen3-14b.yaml"
SHAPE, PROFILE = read_shape("hf://Qwen/Qwen3-4B"), load_profile("h200")
TIME_SHARED = SharedDevice(time_shared=True, trainer_share=0.98, engine_share=0.9)
TOGETHER = SharedDevice(time_shared=False, trainer_share=0.65, engine_share=0.33)


def one_gpu(**rollout: Any) -> AgenticRLJob:
    """Return a job with one rank, one engine and one small RL stage."""
    data = read_manifest(EXAMPLE)
    spec = data["spec"]
    spec["accelerator"] = {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}
    spec["trainer"] |= {"replicas": 1, "gpusPerReplica": 1}
    spec["rollout"] |= {"replicas": 1, "tensorParallel": 1, **rollout}
    spec["grpo"] |= {"promptsPerStep": 8, "rolloutsPerPrompt": 8, "keepPerPrompt": 4}
    spec["stages"] = [stage for stage in spec["stages"] if stage["name"] in ("sft", "rl-8k")]
    return load(data)


def planned(shared: SharedDevice | None, **rollout: Any) -> JobPlan:
    """Return the plan of the job on one H200."""
    return plan_job(one_gpu(**rollout), SHAPE, PROFILE, shared=shared)


def test_shared_device_takes_the_larger_memory() -> None:
    """With time-sharing the device holds one of the two; at the same time it holds both."""
    values = planned(TIME_SHARED).as_json()["stages"]["rl-8k"]
    engine = 0.9 * PROFILE.memory_bytes
    assert values["deviceBytes"] == pytest.approx(max(values["trainerTotal"], engine))
    assert values["engineWeights"] + values["kvCache"] < engine
    together = planned(TOGETHER).as_json()["stages"]["rl-8k"]
    assert together["deviceBytes"] == pytest.approx(together["trainerTotal"] + 0.33 * PROFILE.memory_bytes)
    assert together["trainerTotal"] < 0.65 * PROFILE.memory_bytes
    assert together["kvCache"] < values["kvCache"]


def test_plan_counts_the_reference_policy() -> None:
    """A reference adds its weights in bfloat16 to the trainer, also while it sleeps, and a forward pass to the step."""
    data = one_gpu().model_dump(by_alias=True, exclude_none=True)
    plain = plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"]
    data["spec"]["grpo"]["referenceKl"] = {"weight": 0.001}
    values = plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"]
    size = pytest.approx(2 * SHAPE.parameters)
    assert values["referenceWeights"] == size
    assert values["sleepingTrainer"] - plain["sleepingTrainer"] == size
    assert values["stepSeconds"] > plain["stepSeconds"]
    del data["spec"]["grpo"]["referenceKl"]
    data["spec"]["grpo"]["objective"] = {"type": "Distillation", "teacher": {"source": "pvc://models/teacher"}}
    assert plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"] == values
    data["spec"]["grpo"]["objective"]["teacher"] = {"endpoint": "http://teacher:8000"}
    assert plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"] == plain


def test_plan_counts_a_larger_teacher(tmp_path: Path) -> None:
    """Its weights, its forward pass, and the peak of it; one whose shape is not known counts as the model."""
    teacher = replace(SHAPE, layers=4 * SHAPE.layers)
    config = {"num_hidden_layers": teacher.layers, "hidden_size": teacher.hidden, "vocab_size": teacher.vocabulary}
    config |= {"intermediate_size": teacher.intermediate, "num_attention_heads": teacher.heads, "model_type": "qwen3"}
    config |= {"num_key_value_heads": teacher.kv_heads, "head_dim": teacher.head_dim, "tie_word_embeddings": SHAPE.tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    data = one_gpu().model_dump(by_alias=True, exclude_none=True)
    plans = []
    for source in ("pvc://models/teacher", str(tmp_path)):
        data["spec"]["grpo"]["objective"] = {"type": "Distillation", "teacher": {"source": source}}
        plans.append(plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"])
    small, large = plans
    assert small["referenceWeights"] == pytest.approx(2 * SHAPE.parameters)
    assert large["referenceWeights"] == pytest.approx(2 * teacher.parameters)
    assert large["updateSeconds"] > small["updateSeconds"]


def test_shared_device_host_memory_counts_every_copy() -> None:
    """The host holds the trainer's state, the engine's weights, both copies of Delta and a checkpoint's."""
    parameters = SHAPE.parameters
    values = planned(TIME_SHARED, weightTransport="Delta").as_json()["stages"]["rl-8k"]
    assert values["publishedWeights"] == pytest.approx(2 * parameters)
    assert values["sleepingTrainer"] == pytest.approx((12 + 2) * parameters)
    assert values["sleepingEngine"] == values["hostCopy"] == pytest.approx(2 * parameters)
    assert values["hostBytes"] == pytest.approx((12 + 2 + 2 + 2 + 12) * parameters)
    folder = planned(TIME_SHARED, weightTransport="Folder").as_json()["stages"]["rl-8k"]
    assert folder["hostCopy"] == 0
    assert folder["sleepingTrainer"] == pytest.approx(12 * parameters)
    together = planned(TOGETHER, weightTransport="Auto").as_json()["stages"]["rl-8k"]
    assert "sleepingTrainer" not in together
    assert together["hostBytes"] == pytest.approx((2 + 12) * parameters)


@pytest.mark.parametrize("lora", [None, {"rank": 32}])
def test_shared_device_offload_moves_states_to_the_host(lora: dict[str, int] | None) -> None:
    """The device has no weights, gradients and moments, the host has all, and a turn does not move them."""
    data = one_gpu(weightTransport="Folder").model_dump(by_alias=True, exclude_none=True)
    data["spec"]["trainer"] |= {"lora": lora, "tokensPerMicroBatch": 16384, "activationCheckpointing": "Always"}
    plans = []
    for offload in (False, True):
        data["spec"]["trainer"]["offload"] = offload
        plans.append(plan_job(load(data), SHAPE, PROFILE, shared=TIME_SHARED).as_json()["stages"]["rl-8k"])
    plain, values = plans
    states = sum(plain[name] for name in ("weights", "gradients", "optimizer"))
    assert values["offloaded"] == pytest.approx(states) and "offloaded" not in plain
    assert values["trainerTotal"] == pytest.approx(plain["trainerTotal"] - states)
    assert values["hostBytes"] == pytest.approx(plain["hostBytes"] + plain["gradients"])
    assert values["sleepingTrainer"] == 0


def test_shared_device_step_is_the_sum_of_its_parts() -> None:
    """A step has the turns too: 14 bytes per parameter, out and back. No figure overlaps sampling and training."""
    values = planned(TIME_SHARED).as_json()["stages"]["rl-8k"]
    assert values["switchSeconds"] == pytest.approx(2 * 14 * SHAPE.parameters / HOST_LINK)
    names = ("rolloutSeconds", "updateSeconds", "transferSeconds", "switchSeconds")
    assert values["stepSeconds"] == pytest.approx(sum(values[name] for name in names))
    assert not {"staleStepSeconds", "synchronousSplit", "staleSplit"} & values.keys()
    together = planned(TOGETHER).as_json()["stages"]["rl-8k"]
    assert "switchSeconds" not in together
    assert together["stepSeconds"] == pytest.approx(sum(together[name] for name in names[:3]))


def test_shared_device_plan_states_use_and_assumption() -> None:
    """The summary names the use, and the assumptions the rate of the host link, only if memory moves."""
    plan = planned(TIME_SHARED)
    assert "1 x NVIDIA H200 SXM, which trainer and engine use by time-sharing" in plan.summary
    assert any("50 GB/s" in text for text, _ in plan.assumptions)
    assert not any("50 GB/s" in text for text, _ in planned(TOGETHER).assumptions)
    assert not any("50 GB/s" in text for text, _ in planned(None).assumptions)


def test_shared_device_keeps_the_share_of_the_job() -> None:
    """gpu-memory-utilization of the manifest has priority, as in the engine."""
    job = one_gpu(engineArgs={"gpu_memory_utilization": 0.5})
    assert TIME_SHARED.engine_job(job) is job
    arguments = replace(TIME_SHARED, engine_share=0.4).engine_job(one_gpu()).spec.rollout.engine_args
    assert arguments["gpu-memory-utilization"] == 0.4
