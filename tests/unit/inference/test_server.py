"""The engine's command line, and the token check in front of its routes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import SEQUENCE_TOKENS
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.roles import AcceleratorSpec, RolloutSpec, Vendor
from rstar2_train.capacity.adapter_slots import AdapterSlots, adapter_slots
from rstar2_train.capacity.fit import longest_sequence
from rstar2_train.inference.auth_middleware import RequireToken
from rstar2_train.inference.server import (
    WAITING,
    EngineCommand,
    _longest,
    _of_teacher,
    engine_command,
    kv_bytes_per_token,
)
from rstar2_train.rollout.seeds import derive_seed
from rstar2_train.utils.auth import ENGINE_TOKEN
from rstar2_train.utils.device_lock import DeviceLock
from tests.support.engine import JOB, engine_job

QWEN_14B = {
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
}


def make(
    vendor: Vendor = "None",
    *,
    config: dict[str, Any] | None = None,
    length: int = 512,
    sleep_mode: bool = False,
    adapters: AdapterSlots | None = None,
    teacher: str | None = None,
    **rollout: Any,
) -> EngineCommand:
    return engine_command(
        rollout=RolloutSpec.model_validate(rollout),
        accelerator=AcceleratorSpec.from_vendor(vendor),
        model=Path("/models/m"),
        config=config or QWEN_14B,
        max_model_len=length,
        seed=7,
        port=8000,
        sleep_mode=sleep_mode,
        adapters=adapters,
        teacher=teacher,
    )


def value(start: EngineCommand, flag: str) -> str:
    return start.argv[start.argv.index(flag) + 1]


def test_engine_command_on_cpu() -> None:
    """A CPU engine is exact, binds to loopback, and checks the token before all other code."""
    start = make()
    assert start.argv[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert value(start, "--host") == "127.0.0.1"
    assert value(start, "--dtype") == "float32"
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= set(start.argv)
    places = [at for at, part in enumerate(start.argv) if part == "--middleware"]
    assert (
        start.argv[places[-1] + 1] == "rstar2_train.inference.auth_middleware.RequireToken"
    )  # the last one is the outermost
    assert start.env["TORCH_COMPILE_DISABLE"] == "1"
    assert start.env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


@pytest.mark.parametrize("vendor", ["AMD", "NVIDIA"])
def test_engine_command_on_accelerators(vendor: Vendor) -> None:
    """An accelerator engine uses bfloat16 with float32 logits, and the job's parallelism and admission limit."""
    start = make(vendor, tensorParallel=2, admission={"maxInFlight": 300})
    assert value(start, "--tensor-parallel-size") == "2"
    assert value(start, "--dtype") == "bfloat16"
    assert json.loads(value(start, "--hf-overrides")) == {"head_dtype": "float32"}
    assert value(start, "--max-num-seqs") == "300"
    assert not {"--enforce-eager", "--kv-cache-memory-bytes"} & set(start.argv)
    assert start.tuning == ({"VLLM_ROCM_USE_AITER": "1"} if vendor == "AMD" else {})


def test_engine_command_has_slots_for_the_adapters_of_the_job() -> None:
    """The largest rank, and a slot per version in use; without a GRPO stage with LoRA no engine loads adapters."""
    start = make(adapters=AdapterSlots(rank=64, count=3))
    assert "--enable-lora" in start.argv
    assert (value(start, "--max-lora-rank"), value(start, "--max-loras")) == ("64", "3")
    assert "--enable-lora" not in make().argv

    job = engine_job().model_dump(by_alias=True)
    assert adapter_slots(engine_job()) is None
    job["spec"]["rollout"]["weightTransport"] = "Auto"
    stage = job["spec"]["stages"][0]
    lag = stage["grpo"] | {"maxStaleness": 4}
    job["spec"]["stages"] = [
        stage | {"trainer": {"lora": {"rank": 8}}},
        stage | {"name": "later", "grpo": lag, "trainer": {"lora": {"rank": 64}}},
    ]
    assert adapter_slots(AgenticRLJob.model_validate(job)) == AdapterSlots(rank=64, count=6)


def test_engine_command_of_a_teacher_rates_small_batches() -> None:
    """The logits of a whole batch are in memory together; the experts of its tokens are nobody's."""
    config = {**QWEN_14B, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
    rating, sampling = (make("NVIDIA", config=config, teacher=name) for name in ("/pvc/big", None))
    for flag, values in (
        ("--max-num-batched-tokens", ("2048", "8192")),
        ("--served-model-name", ("/pvc/big", "policy")),
    ):
        assert (value(rating, flag), value(sampling, flag)) == values
    routes = "--enable-return-routed-experts"
    assert (routes in rating.argv, routes in sampling.argv) == (False, True)


def test_teacher_engines_have_arguments_of_their_own() -> None:
    """Those of spec.teacher replace the chosen ones; those of spec.rollout are for engines that sample."""
    job = engine_job()
    job.spec.rollout.engine_args = {"enforce-eager": True}
    job.spec.teacher = TeacherSpec(engine_args={"max_num_batched_tokens": 512, "dtype": "float16"}, tensor_parallel=2)
    rating = make("NVIDIA", teacher="/pvc/big", **_of_teacher(job).model_dump(by_alias=True))
    assert (value(rating, "--max-num-batched-tokens"), value(rating, "--dtype")) == ("512", "float16")
    assert value(rating, "--tensor-parallel-size") == "2" and "--enforce-eager" not in rating.argv


def test_engine_command_cpu_cache_holds_two_sequences() -> None:
    """The KV cache of a CPU engine holds its longest sequence twice."""
    assert kv_bytes_per_token(QWEN_14B, bytes_per_value=2) == 160 * 1024  # algorithm.md §3.6
    assert int(value(make(length=64), "--kv-cache-memory-bytes")) == 256 * 2**20
    assert int(value(make(length=8192), "--kv-cache-memory-bytes")) >= 2 * 8192 * 320 * 1024


def test_engine_command_engine_args_override_defaults() -> None:
    """engineArgs override, negate and remove arguments."""
    arguments = {
        "dtype": "bfloat16",
        "enforce-eager": False,
        "seed": None,
        "max_num_seqs": 9,
        "cudagraph-capture-sizes": [1, 2],
        "compilation_config": {"k": 2},
    }
    start = make(engineArgs=arguments)
    assert start.argv.count("--dtype") == 1 and value(start, "--dtype") == "bfloat16"
    assert "--no-enforce-eager" in start.argv and "--enforce-eager" not in start.argv
    assert "--seed" not in start.argv
    assert value(start, "--max-num-seqs") == "9"
    assert start.argv[start.argv.index("--cudagraph-capture-sizes") :][1:3] == ["1", "2"]
    assert json.loads(value(start, "--compilation-config")) == {"k": 2}


@pytest.mark.parametrize("name", ["host", "middleware", "--port", "api_key", "hf_overrides", "nonsense"])
def test_engine_command_reserved_argument_raises(name: str) -> None:
    """engineArgs cannot change the address or the token check."""
    for role, teacher in (("rollout", None), ("teacher", "/models/big")):
        with pytest.raises(ValueError, match=rf"spec.{role}.engineArgs: '{name}' is set by the system"):
            make(engineArgs={name: "x"}, teacher=teacher)


def test_longest_sequence_is_the_maximum_of_all_stages() -> None:
    """Every stage type and the validation count for the longest sequence."""
    job = engine_job()
    assert longest_sequence(job) == 512
    spec = json.loads(json.dumps(JOB["spec"]))
    spec["stages"].append(
        {"name": "hard", "type": "Filter", "filter": {"data": "d", "sampling": {"maxResponseTokens": 300}}}
    )
    assert longest_sequence(AgenticRLJob.model_validate(JOB | {"spec": spec})) == 2348
    spec["validation"] = {"data": "d", "sampling": {"maxResponseTokens": 400}}
    assert longest_sequence(AgenticRLJob.model_validate(JOB | {"spec": spec})) == 2448


def test_engine_takes_the_sequences_that_the_operator_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that still runs may have longer ones than the job file; a rating has one token more."""
    job = engine_job()
    assert (_longest(job, None), _longest(job, job.spec.stages[0].name)) == (512, 513)
    monkeypatch.setenv(SEQUENCE_TOKENS, "999")
    assert _longest(job, None) == 999


def test_engine_command_sleep_mode_is_for_accelerators() -> None:
    """An engine that shares its GPU by time-sharing can sleep; on the CPU vLLM refuses the flag."""
    assert "--enable-sleep-mode" in make("NVIDIA", sleep_mode=True).argv
    assert "--enable-sleep-mode" not in make("NVIDIA").argv + make(sleep_mode=True).argv


def test_main_waits_for_the_end_of_the_trainers_turn(tmp_path: Path) -> None:
    """An engine that is restarted while the trainer has the device waits: the trainer has its memory."""
    lock = DeviceLock(tmp_path / "device.lock")
    lock.acquire()
    lock.acquire()  # no effect
    argv = [sys.executable, "-m", "rstar2_train.inference.server", "--job", str(tmp_path / "job.json")]
    argv += ["--model", str(tmp_path), "--port", "1", "--device-lock", str(tmp_path / "device.lock")]
    with subprocess.Popen(argv, env=os.environ | {ENGINE_TOKEN: "x" * 16}, stderr=subprocess.PIPE, text=True) as engine:
        assert engine.stderr is not None
        assert engine.stderr.readline().strip() == WAITING
        assert engine.poll() is None
        lock.release()
        assert "cannot start the engine: " in engine.stderr.read()  # it has no job


@pytest.mark.parametrize(
    ("token", "files", "message"),
    [
        ("", True, "must hold a token of at least 16 characters (it has 0)"),
        ("short", True, "it has 5"),
        ("x" * 16, False, "No such file"),
    ],
)
def test_main_invalid_input_prints_one_message(tmp_path: Path, token: str, files: bool, message: str) -> None:
    """A missing token or file is one line on stderr, without a traceback."""
    job = tmp_path / "job.json"
    if files:
        job.write_text(engine_job().model_dump_json())
    argv = [
        sys.executable,
        "-m",
        "rstar2_train.inference.server",
        "--job",
        str(job),
        "--model",
        str(tmp_path),
        "--port",
        "1",
    ]
    done = subprocess.run(argv, env=os.environ | {ENGINE_TOKEN: token}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cannot start the engine: " in done.stderr and message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> RequireToken:
    """Return an application that returns 200 for every request, behind the token `secretsecretsecret`."""
    monkeypatch.setenv(ENGINE_TOKEN, "secretsecretsecret")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return RequireToken(app)


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/metrics/../collective_rpc", None, 401),
        ("/collective_rpc", None, 401),
        ("/inference/v1/generate", None, 401),
        ("/health/", None, 401),
        ("/pause", b"Bearer wrong", 401),
        ("/pause", b"Basic secretsecretsecret", 401),
        ("/pause", b"Bearer ", 401),
        ("/pause", b"Bearer secretsecretsecret", 200),
        ("/pause", b"bearer secretsecretsecret", 200),
    ],
)
async def test_require_token_protects_all_but_probes(
    guarded: RequireToken, path: str, header: bytes | None, status: int
) -> None:
    """Every route except health and metrics requires the token; websockets are closed."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body must not be read before the token")

    headers = [(b"authorization", header)] if header is not None else []
    await guarded({"type": "http", "path": path, "headers": headers}, receive, send)
    assert sent[0]["status"] == status
    sent.clear()
    await guarded({"type": "websocket", "path": path, "headers": headers}, receive, send)
    assert sent[0]["type"] == "websocket.close"


def test_require_token_without_token_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middleware does not start without a token."""
    monkeypatch.delenv(ENGINE_TOKEN, raising=False)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        return None

    with pytest.raises(ValueError, match=ENGINE_TOKEN):
        RequireToken(app)


def test_derive_seed_differs_by_every_part() -> None:
    """Each part of the name changes the seed; equal names have equal seeds."""
    names = [(0, 1, "p", 0, 0), (1, 1, "p", 0, 0), (0, 2, "p", 0, 0), (0, 1, "q", 0, 0), (0, 1, "p", 1, 0)]
    names += [(0, 1, "p", 0, 1), ("0", 1, "p", 0, 0), (0, 11, "p", 0)]
    seeds = [derive_seed(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert seeds == [derive_seed(*name) for name in names]
    assert all(0 <= seed < 2**63 for seed in seeds)
