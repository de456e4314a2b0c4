"""Builds the command line of a vLLM engine from the job, and starts it.

`python -m rstar2_train.inference.server --job job.json --model DIR --port P` becomes the engine's process. `rstar2 run`
starts it as a child, the operator as a container. `engine_command` is a pure function of the job and the model's
config, so that a test of the whole command line needs no engine. The engine binds to loopback by default, and always
requires a token (`auth_middleware.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.api.contracts import SEQUENCE_TOKENS
from rstar2_train.api.engine_args import ALLOWED_ENGINE_ARGS, SERVING_ENGINE_ARGS, engine_dtype, given_args, plain
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_source
from rstar2_train.api.roles import AcceleratorSpec, RolloutSpec
from rstar2_train.capacity.adapter_slots import AdapterSlots, adapter_slots
from rstar2_train.capacity.fit import cpu_kv_bytes, longest_sequence, rated_tokens
from rstar2_train.capacity.memory import ENGINE_SHARE
from rstar2_train.inference.auth_middleware import read_token
from rstar2_train.inference.bucket_cache import cache_environment, fetch_model
from rstar2_train.storage.store import StorageError
from rstar2_train.utils.auth import ENGINE_TOKEN, secret_env
from rstar2_train.utils.device_lock import wait_until_released
from rstar2_train.utils.listening import usable_host
from rstar2_train.utils.scratch_dir import scratch_dir
from rstar2_train.weights.experimental.transfer import BACKEND
from rstar2_train.weights.route_format import RouteFormat

SERVED_NAME = "policy"
WAITING = "the engine starts when the trainer leaves the GPU"
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # The default of 5 s would close a kept connection while a trajectory waits for its tool.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
}
"""Variables of every engine."""
RATED_TOKENS = 2048
"""Tokens of a teacher's batch: it has the logits of each, 1.2 GB in float32 at a vocabulary of 152,000."""
_BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command that starts an engine."""

    argv: list[str]
    env: dict[str, str]
    """Variables that override the inherited environment."""
    tuning: dict[str, str]
    """Default variables; the inherited environment, such as a runtimePatch, overrides them."""


def engine_command(
    *,
    rollout: RolloutSpec,
    accelerator: AcceleratorSpec,
    model: Path,
    config: Mapping[str, Any],
    max_model_len: int,
    seed: int,
    port: int,
    host: str = "127.0.0.1",
    memory_share: float = ENGINE_SHARE,
    sleep_mode: bool = False,
    adapters: AdapterSlots | None = None,
    teacher: str | None = None,
) -> EngineCommand:
    """Return the command line and environment of one engine.

    `config`: the model's config.json; `max_model_len`: tokens of the longest prompt and response together;
    `memory_share`: share of each GPU's memory that the engine may use; `sleep_mode`: it can leave its GPU to the
    trainer; `adapters`: number and rank of the adapters that it loads; `teacher`: name of a teacher, which only rates
    tokens. The `engineArgs` of `rollout` override the arguments chosen here (None removes one). Raises ValueError for
    an argument that only the system may set.
    """
    args: dict[str, Any] = {
        "model": str(model),
        "served-model-name": teacher or SERVED_NAME,
        "host": host,
        "port": port,
        # The last one is the outermost: it checks the token before all other code.
        "middleware": [
            "rstar2_train.inference.generate_route.GenerateRoute",
            "rstar2_train.inference.auth_middleware.RequireToken",
        ],
        "worker-extension-cls": "rstar2_train.inference.worker_extension.WeightExtension",
        "logprobs-mode": "processed_logprobs",
        "tensor-parallel-size": rollout.tensor_parallel,
        "max-model-len": max_model_len,
        "seed": seed,
        # Without it, generation_config.json would add its own top_k, top_p and temperature to every request.
        "generation-config": "vllm",
        "disable-uvicorn-access-log": True,
    }
    env = dict(_ENVIRONMENT)
    if rollout.weight_transport == "Collective":
        args["weight-transfer-config"] = {"backend": BACKEND}
    if adapters is not None:
        args |= {"enable-lora": True, "max-lora-rank": adapters.rank, "max-loras": adapters.count}
    tuning: dict[str, str] = {}
    if accelerator.vendor == "None":
        tuning["OMP_NUM_THREADS"] = "1"
        _cpu(args, env, rollout=rollout, config=config, max_model_len=max_model_len)
    else:
        if accelerator.vendor == "AMD":
            tuning["VLLM_ROCM_USE_AITER"] = "1"  # AMD's kernels, made for MI300X
        _gpu(args, rollout=rollout, memory_share=memory_share)
        if teacher is not None:
            args["max-num-batched-tokens"] = RATED_TOKENS
        elif RouteFormat.of(config) is not None:  # on the CPU the worker records them (`route_capture`)
            args["enable-return-routed-experts"] = True
            env["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        if sleep_mode:
            args["enable-sleep-mode"] = True
    args |= _own_args(rollout, "rollout" if teacher is None else "teacher")
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for key, value in args.items():
        argv += _flag(key, value)
    return EngineCommand(argv, env, tuning)


def _own_args(rollout: RolloutSpec, role: str) -> dict[str, Any]:
    """Return the `engineArgs` of a role by their plain names. Raises ValueError for one that is not allowed."""
    for name in rollout.engine_args:
        if plain(name) not in ALLOWED_ENGINE_ARGS and plain(name) not in SERVING_ENGINE_ARGS:
            raise ValueError(f"spec.{role}.engineArgs: {name!r} is set by the system, or not allowed: remove it")
    return given_args(rollout)


def kv_bytes_per_token(config: Mapping[str, Any], *, bytes_per_value: int) -> int:
    """Return the bytes of keys and values of one token in all layers."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * bytes_per_value)


def _cpu(
    args: dict[str, Any], env: dict[str, str], *, rollout: RolloutSpec, config: Mapping[str, Any], max_model_len: int
) -> None:
    """Set the arguments for a small model on CPU: fast start, exact results, no C++ compiler at run time."""
    dtype = engine_dtype(rollout, "None")
    if dtype != "float32":
        args["hf-overrides"] = {"head_dtype": "float32"}  # logits as in the trainer
    per_token = kv_bytes_per_token(config, bytes_per_value=_BYTES_PER_VALUE.get(dtype, 4))
    args |= {
        "dtype": dtype,  # "auto" would turn a float32 checkpoint into bfloat16
        "enforce-eager": True,
        "kv-cache-memory-bytes": cpu_kv_bytes(per_token, longest=max_model_len),
        "max-num-seqs": min(rollout.admission.max_in_flight, 256),
        # On CPU a seeded request with a split prefill crashes the engine (its generators have no offset).
        "enable-chunked-prefill": False,
        "max-num-batched-tokens": max(4096, max_model_len),
        # Prompts and turns of a small model are short: with the default block of 128 the prefix cache would be unused.
        "block-size": 32,
    }
    env |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # worker inside the engine core: half the start time and memory
        "TORCH_COMPILE_DISABLE": "1",  # else the first request compiles a helper, and fails without g++
    }


def _gpu(args: dict[str, Any], *, rollout: RolloutSpec, memory_share: float) -> None:
    """Set the arguments for a large model on accelerators."""
    args |= {
        "dtype": "bfloat16",
        # Logits in float32, as in the trainer: rounded to bfloat16 they change a log-probability by 0.02 nats.
        "hf-overrides": {"head_dtype": "float32"},
        "gpu-memory-utilization": memory_share,
        "max-num-seqs": rollout.admission.max_in_flight,
        "max-num-batched-tokens": 8192,
    }


def _flag(key: str, value: Any) -> list[str]:
    """Return one argument in the form of vLLM's parser; None omits it."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{key}"] if value else [f"--no-{key}"]
    if key == "middleware":  # the only argument that is repeated per value
        return [part for item in value for part in (f"--{key}", str(item))]
    if isinstance(value, list):
        return [f"--{key}", *(str(item) for item in value)]
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _of_teacher(job: AgenticRLJob) -> RolloutSpec:
    """Return the settings of the teacher's engines: no argument of those that sample applies to them."""
    spec = job.spec.teacher
    assert spec is not None
    return RolloutSpec(tensor_parallel=spec.tensor_parallel, engine_args=spec.engine_args)


def _source(job: AgenticRLJob, teacher_of: str | None) -> str:
    """Return the source of the model that the engine serves: that of the job, or of the teacher of a stage."""
    teacher = job.served_teacher(job.stage(teacher_of)) if teacher_of is not None else None
    return teacher or job.spec.model.source


def _longest(job: AgenticRLJob, teacher_of: str | None) -> int:
    """Return the tokens of the longest sequence: those that the operator sets, or of the job file."""
    if given := os.environ.get(SEQUENCE_TOKENS):
        return int(given)
    return longest_sequence(job) if teacher_of is None else rated_tokens(job, job.stage(teacher_of))


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rstar2_train.inference.server", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="the job file (JSON)")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the initial model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: loopback only)")
    parser.add_argument(
        "--memory-share",
        type=float,
        default=ENGINE_SHARE,
        help="share of each GPU's memory for the engine; less than the default if a trainer uses the same GPU",
    )
    parser.add_argument(
        "--device-lock",
        type=Path,
        help="lock of the trainer that uses the same GPU by time-sharing: wait for it, then start with sleep mode",
    )
    parser.add_argument(
        "--bucket",
        type=Path,
        metavar="FOLDER",
        help="this machine's folder of the job, whose state is in the bucket of spec.storage.url: the model and new "
        "weights are copied to it (default: they are read where they are)",
    )
    parser.add_argument(
        "--teacher", metavar="STAGE", help="serve the teacher of a stage (spec.teacher); --model is its folder"
    )
    options = parser.parse_args()
    config_file = options.model / "config.json"
    copies: dict[str, str] = {}
    try:
        read_token()
        if options.device_lock is not None:
            wait_until_released(options.device_lock, on_wait=lambda: print(WAITING, file=sys.stderr, flush=True))
        job = AgenticRLJob.model_validate_json(options.job.read_text(encoding="utf-8"))
        if options.bucket is not None:
            copies = cache_environment(options.job, options.bucket)
            fetch_model(job, _source(read_source(options.job), options.teacher), options.model, options.bucket)
        config = json.loads(config_file.read_text(encoding="utf-8"))
        needed = _longest(job, options.teacher)
        limit = config.get("max_position_embeddings", needed)
        if needed > limit:
            print(
                f"prompt and response of this job can have {needed} tokens; the model's limit is {limit}",
                file=sys.stderr,
            )
        start = engine_command(
            rollout=job.spec.rollout if options.teacher is None else _of_teacher(job),
            accelerator=job.spec.accelerator,
            model=options.model.resolve(),
            config=config,
            max_model_len=min(needed, limit),
            seed=job.spec.seed,
            port=options.port,
            host=usable_host(options.host),
            memory_share=options.memory_share,
            sleep_mode=options.device_lock is not None,
            adapters=adapter_slots(job) if options.teacher is None else None,
            # The name in requests: after an edit, engines of another teacher refuse them.
            teacher=str(options.model) if options.teacher is not None else None,
        )
        # vLLM does not delete its sockets. The engine holds the lock from now on, until it exits.
        sockets, lock = scratch_dir("rstar2-engine-")
        os.set_inheritable(lock.fileno(), True)
    except (ValueError, OSError, StorageError) as error:
        raise SystemExit(f"cannot start the engine: {error}") from error
    required = {**secret_env(ENGINE_TOKEN, read_token()), "TMPDIR": str(sockets), **copies}
    os.execve(start.argv[0], start.argv, start.tuning | os.environ | start.env | required)


if __name__ == "__main__":
    _main()
