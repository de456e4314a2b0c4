"""Fields of a config that the classes of transformers and vLLM read, and embeddings that vLLM adapts, by source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ENGINE_FILES: Mapping[str, tuple[str, ...]] = {
    "cohere": ("commandr",),
    "cohere2": ("commandr",),
    "ernie4_5": ("ernie45", "llama"),
    "exaone4": ("exaone4",),
    "gemma": ("gemma",),
    "gemma2": ("gemma2",),
    "gemma3_text": ("gemma3",),
    "glm4": ("glm4",),
    "gpt_oss": ("gpt_oss",),
    "granite": ("granite",),
    "granitemoe": ("granitemoe", "granite"),
    "granitemoehybrid": ("granitemoehybrid",),
    "hyperclovax": ("hyperclovax",),
    "llama": ("llama",),
    "mistral": ("mistral", "llama"),
    "mixtral": ("mixtral",),
    "nemotron": ("nemotron",),
    "olmoe": ("olmoe",),
    "phi3": ("phi3", "llama"),
    "qwen2": ("qwen2",),
    "qwen2_moe": ("qwen2_moe",),
    "qwen3": ("qwen3", "qwen2"),
    "qwen3_moe": ("qwen3_moe",),
    "stablelm": ("stablelm",),
}
"""Files of vLLM's classes, by model type. Model types without a row run in the class of transformers."""
_OTHERS = frozenset(
    {"cache_config", "eplb_config", "lora_config", "model_config", "parallel_config", "quant_config", "vllm_config"}
)
"""Configs of the engine."""


def trainer_fields(kind: str) -> frozenset[str]:
    """Return the fields that the class of a model type reads in transformers, and one that the base of all reads."""
    name = kind.removesuffix("_text")
    fields = _fields(_package("transformers") / "models" / name / f"modeling_{name}.py")
    return fields | {"tie_word_embeddings"}


def engine_fields(kind: str) -> frozenset[str]:
    """Return the fields that the class of a model type reads in vLLM. `kind`: one of `ENGINE_FILES`."""
    folder = _package("vllm") / "model_executor" / "models"
    return frozenset().union(*(_fields(folder / f"{name}.py") for name in ENGINE_FILES[kind]))


def adapted_embeddings(kind: str) -> int:
    """Return how many of embedding and output projection a slot for an adapter has in vLLM, by its class."""
    models = _package("vllm") / "model_executor" / "models"
    for name in ENGINE_FILES.get(kind, ("transformers/base",)):
        for node in ast.walk(ast.parse((models / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "embedding_modules":
                return len(ast.literal_eval(node.value))
    return 0


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@cache
def _fields(file: Path) -> frozenset[str]:
    return frozenset(_reads(ast.parse(file.read_text(encoding="utf-8"))))


def _reads(tree: ast.AST) -> set[str]:
    """Return the names in `config.NAME`, `getattr(config, "NAME")` and `hasattr(config, "NAME")`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = node.args[0], node.args[1]
            if _is_config(owner) and isinstance(name, ast.Constant):
                names.add(str(name.value))
    return names


def _is_config(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return "config" in name and name not in _OTHERS
