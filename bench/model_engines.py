"""Compares tiny models of each family in a vLLM engine on the CPU with transformers, in float32.

The engine starts with a model, then loads another one as it does between two steps, and then an adapter, if the family
has LoRA. The engines run in a process of their own, `python -m bench.model_engines FOLDER`: vLLM and the trainer both
have process groups, and vLLM changes classes of transformers.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rstar2_train.capacity.engine_support import find_engine_obstacles
from rstar2_train.capacity.model_support import ADAPTED
from rstar2_train.inference.parameter_hashes import ENABLED
from rstar2_train.trainer.self_check import row_logprobs
from rstar2_train.weights.adapter_folder import AdapterIdentity, folder_digest, write_adapter
from tests.support.adapters import MODULES, merge_into, random_tensors
from tests.support.folder_hashes import folder_hashes
from tests.support.model_families import WINDOW, engine_fields, write_family

TOKENS = 40
"""Tokens of a sequence, of which the engine samples a third: longer than the windows."""
SEQUENCES = 3
RANK, ALPHA = 8, 16
FIRST, SECOND, ADAPTER = "difference", "reloaded", "adapter"
"""Folders of a family, and fields of its row: the engine's first model, the next one, and the next one's adapter."""
REQUEST, REPLY = "request.json", "reply.json"
ENVIRONMENT = {
    ENABLED: "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def measure(families: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per family."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / f"{number:03d}" for number, _ in enumerate(families)]
        rows = [_write(family, folder) for family, folder in zip(families, folders, strict=True)]
        command = [sys.executable, "-m", "bench.model_engines", name]
        subprocess.run(command, env=os.environ | ENVIRONMENT, check=True)
        return [row | _compare(folder) for row, folder in zip(rows, folders, strict=True)]


def _write(family: str, folder: Path) -> dict[str, Any]:
    """Write the models of a family and the request to its engine; return the first fields of its row.

    A family that `find_engine_obstacles` refuses for long sequences has sequences of its window.
    """
    for seed, name in enumerate((FIRST, SECOND), start=3):
        write_family(family, folder / name, seed=seed, **engine_fields(family))
    config = json.loads((folder / FIRST / "config.json").read_text(encoding="utf-8"))
    tokens = TOKENS if not list(find_engine_obstacles(config, longest=TOKENS)) else WINDOW
    row: dict[str, Any] = {"family": family, "tokens": tokens}
    if refusals := list(find_engine_obstacles(config, longest=tokens)):
        row["refused"] = "; ".join(refusals)
    if config["model_type"] in ADAPTED:
        (folder / ADAPTER).mkdir()
        base = folder / SECOND
        identity = AdapterIdentity(base=folder_digest(base), rank=RANK, alpha=ALPHA, modules=MODULES)
        write_adapter(folder / ADAPTER, random_tensors(base, rank=RANK, seed=1), identity, base=base)
    (folder / REQUEST).write_text(json.dumps({"tokens": tokens}))
    return row


def _compare(folder: Path) -> dict[str, Any]:
    """Return the largest differences of the log-probabilities of an engine to transformers, or why there is none.

    Raises RuntimeError if the engine did not load a model or an adapter as a whole.
    """
    reply = json.loads((folder / REPLY).read_text(encoding="utf-8"))
    if "error" in reply:
        return {"error": reply["error"]}
    if problem := reply.get("problem"):
        raise RuntimeError(f"{folder}: {problem}")
    expected = folder_hashes(folder / SECOND)
    actual = reply["hashes"]
    row: dict[str, Any] = {
        "class": reply["class"],
        "tensors": len(expected),
        "other_tensors": sorted(name for name, value in expected.items() if actual.get(name) != value),
    }
    for name, sequences in reply["sequences"].items():
        source = folder / (FIRST if name == FIRST else SECOND)
        reference = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
        if name == ADAPTER:
            merge_into(reference, random_tensors(source, rank=RANK, seed=1), scale=ALPHA / RANK)
        row[name] = max(_difference(reference, *sequence) for sequence in sequences)
    return row


@torch.no_grad()
def _difference(reference: Any, ids: list[int], logprobs: list[float]) -> float:
    expected = row_logprobs(reference(torch.tensor([ids])).logits[0], torch.tensor(ids))
    return float((torch.tensor(logprobs) - expected).abs().nan_to_num(nan=float("inf")).max())


def _run_engine(folder: Path) -> dict[str, Any]:
    """Return tokens and log-probabilities of an engine with each model of a family, and the hashes of the second."""
    from vllm import LLM
    from vllm.lora.request import LoRARequest

    adapter = folder / ADAPTER
    try:
        engine: Any = LLM(
            model=str(folder / FIRST),
            dtype="float32",
            enforce_eager=True,
            skip_tokenizer_init=True,
            max_model_len=128,
            max_num_seqs=4,
            block_size=32,
            enable_prefix_caching=False,
            worker_extension_cls="rstar2_train.inference.worker_extension.WeightExtension",
            **({"enable_lora": True, "max_lora_rank": RANK} if adapter.exists() else {}),
        )
    except Exception as error:  # any of vLLM, which refuses the model
        return {"error": str(error).partition("\n")[0]}
    tokens = json.loads((folder / REQUEST).read_text(encoding="utf-8"))["tokens"]
    sequences = {FIRST: _sample(engine, tokens)}
    engine.collective_rpc("rstar2_clear_hashes")
    (result,) = engine.collective_rpc("rstar2_load", args=(str(folder / SECOND),))
    if not result["ok"]:
        return {"problem": result["why"]}
    sequences[SECOND] = _sample(engine, tokens)
    (hashes,) = engine.collective_rpc("rstar2_hashes")
    if adapter.exists():
        sequences[ADAPTER] = _sample(engine, tokens, lora_request=LoRARequest(ADAPTER, 1, str(adapter)))
        arguments = (1, str(adapter), ALPHA / RANK)
        ((problem, bound),) = engine.collective_rpc("rstar2_adapter_difference", args=arguments)
        layers = engine.llm_engine.model_config.hf_config.num_hidden_layers
        if problem or len(bound) != layers * len(MODULES):
            return {"problem": problem or f"vLLM has bound {len(bound)} layers of the adapter"}
    (name,) = engine.apply_model(_class_name)
    return {"class": name, "sequences": sequences, "hashes": hashes}


def _sample(engine: Any, tokens: int, **options: Any) -> list[tuple[list[int], list[float]]]:
    """Return sequences, and the log-probability of each token after the first: those of prompts, and sampled ones."""
    from vllm import SamplingParams

    generator = torch.Generator().manual_seed(1)
    sampled = tokens // 3
    prompts = torch.randint(3, 90, (SEQUENCES, tokens - sampled), generator=generator).tolist()
    parameters = SamplingParams(
        max_tokens=sampled, ignore_eos=True, prompt_logprobs=0, logprobs=0, detokenize=False, seed=1
    )
    sequences = []
    for prompt in prompts:
        # One after the other: with LoRA vLLM cannot score several prompts of a batch on the CPU.
        (output,) = engine.generate({"prompt_token_ids": prompt}, parameters, use_tqdm=False, **options)
        ids = [*prompt, *output.outputs[0].token_ids]
        reported = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        sequences.append((ids, [values[token].logprob for values, token in zip(reported, ids[1:], strict=True)]))
    return sequences


def _class_name(model: Any) -> str:
    return type(model).__name__


def main() -> None:
    """Run an engine for each folder of families."""
    from vllm.distributed import cleanup_dist_env_and_memory

    for folder in sorted(Path(sys.argv[1]).iterdir()):
        reply = _run_engine(folder)
        print(folder.name, reply.get("error") or reply.get("problem") or reply["class"], flush=True)
        (folder / REPLY).write_text(json.dumps(reply), encoding="utf-8")
        cleanup_dist_env_and_memory()
        gc.collect()


if __name__ == "__main__":
    main()
