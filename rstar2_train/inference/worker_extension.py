"""Runs inside every vLLM worker: loads new weights from a folder without stopping the engine.

vLLM mixes `WeightExtension` into its worker class (`--worker-extension-cls`); the trainer calls its methods through
`/collective_rpc` (`pool.py`). It exists for two traps of vLLM's own reload: a folder that cannot be loaded leaves
the model half gone and the next request kills the engine, so files are checked first; and with tied embeddings the
output head keeps a packed copy of the old weights on CPU, so it is packed again. Imported only inside vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TIED_HEAD = "lm_head.weight"


class WeightExtension:
    """Methods added to vLLM's worker. Names carry a prefix, for vLLM refuses those that its worker has."""

    model_runner: Any
    vllm_config: Any
    _rstar2_shapes: dict[str, tuple[int, ...]] | None

    def rstar2_load(self, folder: str) -> dict[str, Any]:
        """Put the weights of a Hugging Face folder in place of the present ones.

        Returns `{"ok": True}`, or `{"ok": False, "why": ...}` with the model untouched when the folder does not hold
        this model. The caller resets the prefix cache, which still holds keys and values of the old weights.
        """
        why = self._rstar2_refusal(Path(folder))
        if why:
            return {"ok": False, "why": why}
        boot_folder = self.vllm_config.model_config.model
        self.model_runner.reload_weights(weights_path=folder)
        # vLLM now names the pushed folder as the engine's model; that folder is deleted in time, the first one is not.
        self.vllm_config.model_config.model = boot_folder
        self._rstar2_repack_tied_head()
        return {"ok": True}

    def _rstar2_refusal(self, folder: Path) -> str:
        """Why the folder cannot be loaded; empty when it can. Reads headers only."""
        if getattr(self, "_rstar2_shapes", None) is None:
            self._rstar2_shapes = tensor_shapes(Path(self.vllm_config.model_config.model))
        expected = self._rstar2_shapes or {}
        try:
            found = tensor_shapes(folder)
        except ValueError as error:
            return str(error)
        if self.vllm_config.model_config.hf_config.tie_word_embeddings:
            expected = {name: shape for name, shape in expected.items() if name != TIED_HEAD}
            found = {name: shape for name, shape in found.items() if name != TIED_HEAD}
        return difference(expected, found, folder=folder)

    def _rstar2_repack_tied_head(self) -> None:
        """Make a tied output head use the embedding's new weights (nothing to do for an untied one)."""
        model = self.model_runner.get_model()
        if not self.vllm_config.model_config.hf_config.tie_word_embeddings:
            return
        head, embedding = model.lm_head, model.model.embed_tokens
        head.weight = embedding.weight
        head.quant_method.process_weights_after_loading(head)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in a folder's safetensors files, by name, from their headers.

    A file shorter than its header says is refused by the reader. Raises ValueError naming the file that is wrong.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        files = [folder / name for name in names]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no safetensors files")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
    return shapes


def difference(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]], *, folder: Path) -> str:
    """The first difference between the model's tensors and a folder's; empty when there is none."""
    for kind, names in (("lacks", expected.keys() - found.keys()), ("has an unknown", found.keys() - expected.keys())):
        if names:
            return f"{folder} {kind} tensor {min(names)!r} ({len(names)} such)"
    for name in sorted(expected):
        if expected[name] != found[name]:
            return f"{folder}: tensor {name!r} has shape {found[name]}, the engine's model has {expected[name]}"
    return ""
