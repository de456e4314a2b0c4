"""Loads new weights from a folder inside every vLLM worker, without stopping the engine.

vLLM mixes `WeightExtension` into its worker class (`--worker-extension-cls`); the client calls its methods through
`/collective_rpc` (`client.py`). It works around two defects of vLLM's own reload. A folder that cannot be loaded leaves
a partial model, and the next request crashes the engine: the files are checked first. With tied embeddings the output
head keeps a packed copy of the old weights on CPU: it is packed again. Imported only inside vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TIED_HEAD = "lm_head.weight"


class WeightExtension:
    """Methods that vLLM adds to its worker. vLLM rejects the names of its own methods, so they have a prefix."""

    model_runner: Any
    vllm_config: Any
    _rstar2_shapes: dict[str, tuple[int, ...]] | None

    def rstar2_load(self, folder: str) -> dict[str, Any]:
        """Replace the weights with those of a Hugging Face folder.

        Returns `{"ok": True}`, or `{"ok": False, "why": ...}` without a change when the folder holds another model. The
        caller must reset the prefix cache, which still has keys and values of the old weights.
        """
        mismatch = self._rstar2_mismatch(Path(folder))
        if mismatch:
            return {"ok": False, "why": mismatch}
        boot_folder = self.vllm_config.model_config.model
        self.model_runner.reload_weights(weights_path=folder)
        # vLLM has set the engine's model to the pushed folder, which is deleted later; the first folder stays.
        self.vllm_config.model_config.model = boot_folder
        self._rstar2_repack_tied_head()
        return {"ok": True}

    def _rstar2_mismatch(self, folder: Path) -> str:
        """Return why the folder cannot be loaded; empty if it can. Reads only headers."""
        if getattr(self, "_rstar2_shapes", None) is None:
            self._rstar2_shapes = tensor_shapes(Path(self.vllm_config.model_config.model))
        expected = self._rstar2_shapes or {}
        try:
            actual = tensor_shapes(folder)
        except ValueError as error:
            return str(error)
        if self.vllm_config.model_config.hf_config.tie_word_embeddings:
            expected = {name: shape for name, shape in expected.items() if name != TIED_HEAD}
            actual = {name: shape for name, shape in actual.items() if name != TIED_HEAD}
        return difference(expected, actual, folder=folder)

    def _rstar2_repack_tied_head(self) -> None:
        """Let a tied output head use the new weights of the embedding."""
        model = self.model_runner.get_model()
        if not self.vllm_config.model_config.hf_config.tie_word_embeddings:
            return
        head, embedding = model.lm_head, model.model.embed_tokens
        head.weight = embedding.weight
        head.quant_method.process_weights_after_loading(head)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder's safetensors files, by name, from their headers.

    The reader rejects a file that is shorter than its header requires. Raises ValueError with the name of the file.
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
        raise ValueError(f"{folder} has no safetensors files")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
    return shapes


def difference(expected: dict[str, tuple[int, ...]], actual: dict[str, tuple[int, ...]], *, folder: Path) -> str:
    """Return the first difference between the model's tensors and the folder's; empty if they are equal."""
    for kind, names in (
        ("lacks", expected.keys() - actual.keys()),
        ("has an unknown", actual.keys() - expected.keys()),
    ):
        if names:
            return f"{folder} {kind} tensor {min(names)!r} ({len(names)} such)"
    for name in sorted(expected):
        if expected[name] != actual[name]:
            return f"{folder}: tensor {name!r} has shape {actual[name]}, the engine's model has {expected[name]}"
    return ""
