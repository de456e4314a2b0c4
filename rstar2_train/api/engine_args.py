"""The vLLM arguments that a job may set: those that keep the model, its probabilities and its address.

The trainer recomputes the probabilities of the sampled tokens, so an engine must compute the same model in the same
way. Other arguments are refused, also those of a vLLM that is newer than this list. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rstar2_train.api.issue import Issue

if TYPE_CHECKING:  # the ranks of the GPU kit have no pydantic
    from rstar2_train.api.job import AgenticRLJob
    from rstar2_train.api.objectives import TeacherSpec
    from rstar2_train.api.roles import RolloutSpec, Vendor

RESERVED_ENGINE_ARGS = frozenset(
    {
        *("model", "served-model-name", "host", "port", "uds", "root-path", "api-key", "middleware"),
        *("tensor-parallel-size", "worker-extension-cls", "enable-scale-out", "logprobs-mode"),
    }
)
"""vLLM arguments that the engine's launcher sets itself."""
ALLOWED_ENGINE_ARGS = (
    # Length, memory and batches.
    *("max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "kv-cache-memory-bytes"),
    *("num-gpu-blocks-override", "block-size", "enable-prefix-caching", "prefix-caching-hash-algo"),
    *("enable-chunked-prefill", "long-prefill-token-threshold", "scheduling-policy", "async-scheduling", "seed"),
    # Kernels, compilation and devices.
    *("dtype", "enforce-eager", "compilation-config", "optimization-level", "cudagraph-capture-sizes"),
    *("max-cudagraph-capture-size", "attention-backend", "moe-backend", "disable-cascade-attn"),
    *("disable-custom-all-reduce", "distributed-executor-backend", "distributed-timeout-seconds"),
    *("data-parallel-size", "enable-expert-parallel", "all2all-backend", "enable-sleep-mode", "numa-bind"),
    # Loading, logs and metrics.
    *("safetensors-load-strategy", "max-parallel-loading-workers", "use-tqdm-on-load", "shutdown-timeout"),
    *("disable-log-stats", "enable-log-requests", "disable-uvicorn-access-log", "uvicorn-log-level"),
    *("kv-cache-metrics", "kv-cache-metrics-sample", "otlp-traces-endpoint", "collect-detailed-traces"),
)
"""vLLM arguments that a job may set."""
SERVING_ENGINE_ARGS = frozenset({"enable-auto-tool-choice", "tool-call-parser", "chat-template"})
"""vLLM arguments of a served model, besides those of a job: `rstar2 serve` and the operator set them."""
ENGINE_DTYPES = ("float32", "bfloat16", "float16")
RESERVED = "is set by the operator and cannot be overridden"
REFUSED = "could change the model, its probabilities or its sampling, or is unknown: remove it"
DTYPE = f"must be {', '.join(ENGINE_DTYPES[:-1])} or {ENGINE_DTYPES[-1]}"


def plain(name: str) -> str:
    """Return the name of an argument in the form of the lists of this module."""
    return name.lstrip("-").replace("_", "-")


def given_args(engines: RolloutSpec | TeacherSpec) -> dict[str, Any]:
    """Return the engineArgs of a job's engines, or of those of its teacher, by their plain names."""
    return {plain(name): value for name, value in engines.engine_args.items()}


def engine_dtype(engines: RolloutSpec | TeacherSpec, vendor: Vendor) -> str:
    """Return the number format in which engines compute: that of engineArgs, or that of the device."""
    return str(given_args(engines).get("dtype", "float32" if vendor == "None" else "bfloat16"))


def engine_args(job: AgenticRLJob) -> Iterator[Issue]:
    """Yield the arguments that a job may not set, of its engines and of those of its teacher."""
    yield from _faults("spec.rollout.engineArgs", job.spec.rollout.engine_args)
    if job.spec.teacher is not None:
        yield from _faults("spec.teacher.engineArgs", job.spec.teacher.engine_args)


def _faults(field: str, arguments: Mapping[str, Any]) -> Iterator[Issue]:
    for name, value in arguments.items():
        at = f"{field}.{name}"
        if plain(name) in RESERVED_ENGINE_ARGS:
            yield Issue(at, RESERVED)
        elif plain(name) not in ALLOWED_ENGINE_ARGS:
            yield Issue(at, f"{REFUSED}. Allowed: {', '.join(sorted(ALLOWED_ENGINE_ARGS))}")
        elif plain(name) == "dtype" and value not in ENGINE_DTYPES:
            yield Issue(at, DTYPE, value)
