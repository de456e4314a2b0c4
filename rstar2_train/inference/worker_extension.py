"""Loads new weights inside every vLLM worker without stopping the engine: a folder, or a chain of weight versions.

vLLM mixes `WeightExtension` into its worker class (`--worker-extension-cls`); the client calls its methods through
`/collective_rpc` (`client.py`). It works around three defects of vLLM's own reload. A folder that cannot be loaded
leaves a partial model, and the next request crashes the engine: the files are checked first. With tied embeddings the
output head keeps a packed copy of the old weights on CPU: it is packed again. The experts of a mixture are not packed
again on CPU (`packed_experts.py`). Imported only inside vLLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rstar2_train.capacity.weight_files import weight_map
from rstar2_train.inference import adapter_buffers, gpt_oss_loader, packed_experts, parameter_hashes, route_capture
from rstar2_train.inference import transfer_backend as transfer_backend  # registers the backend
from rstar2_train.inference.host_weights import host_copy, host_tensors, is_reading, read_versions, repack_tied_head
from rstar2_train.weights.adapter_check import LayerShapes, find_difference
from rstar2_train.weights.shard_file import ShardFileInvalid

TIED_HEAD = "lm_head.weight"
gpt_oss_loader.install()
packed_experts.install()
parameter_hashes.install()
route_capture.install()


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
        repack_tied_head(self.model_runner.get_model(), self.vllm_config)
        return {"ok": True}

    def rstar2_fetch(self, ticket: str, folders: list[str], fresh: bool) -> dict[str, Any]:
        """Bring the host copy to the last version of a chain in the background; the model keeps its weights.

        The first call of a ticket starts the read, the next ones report on it: `{"ok": None}` until it ends, then its
        bytes as `{"ok": True, "bytes": ...}`, or `{"ok": False, "why": ...}` for files that are missing, damaged, or of
        another model.
        """
        read = read_versions(ticket, [Path(folder) for folder in folders], fresh=fresh)
        if not read.done():
            return {"ok": None}
        try:
            size = read.result()
        except ShardFileInvalid as error:
            return {"ok": False, "why": str(error)}
        copy = host_copy()
        mismatch = self._rstar2_difference(dict(copy.shapes), folder=Path(folders[-1]))
        if mismatch:
            copy.clear()
            return {"ok": False, "why": mismatch}
        return {"ok": True, "bytes": size}

    def rstar2_swap(self, version_id: str) -> dict[str, Any]:
        """Replace the weights with those of the host copy, which must hold version `version_id`. Returns as `load`."""
        copy = host_copy()
        if is_reading() or copy.id != version_id:
            return {"ok": False, "why": f"the host copy holds version {copy.id}, not {version_id}"}
        # All tensors, also the unchanged ones: vLLM would leave the rest of a fused layer uninitialised.
        self.model_runner.reload_weights(weights_iterator=host_tensors(copy))
        repack_tied_head(self.model_runner.get_model(), self.vllm_config)
        return {"ok": True}

    def rstar2_adapter_mismatch(self, layers: LayerShapes) -> str:
        """Return why an adapter with these layers does not fit the model; empty if it does."""
        return find_difference(layers, self._rstar2_model_shapes())

    def rstar2_adapter_difference(self, adapter: int, folder: str, scale: float) -> tuple[str, list[str]]:
        """Return the first difference of a loaded adapter to its files, and the layers that vLLM has bound."""
        manager = self.model_runner.lora_manager._adapter_manager
        return adapter_buffers.compare(manager, adapter, Path(folder), scale=scale)

    def rstar2_routes(self, name: str, first: int, last: int, final: bool) -> tuple[int, bytes] | None:
        """Return bytes per row and rows of the experts of tokens of a request; None if they are not known."""
        capture = route_capture.route_capture(self.model_runner)
        return None if capture is None else capture.fetch(name, first, last, final=final)

    def rstar2_hashes(self) -> dict[str, str]:
        """Return the SHA-256 of every parameter; needs RSTAR2_HASH_WEIGHTS in the engine's environment."""
        return parameter_hashes.engine_hashes(self.model_runner.get_model())

    def rstar2_clear_hashes(self) -> None:
        """Clear the hashes of packed layers: after the next load, a layer without one was not loaded."""
        parameter_hashes.clear()

    def _rstar2_mismatch(self, folder: Path) -> str:
        """Return why the folder cannot be loaded; empty if it can. Reads only headers."""
        try:
            actual = tensor_shapes(folder)
        except ValueError as error:
            return str(error)
        return self._rstar2_difference(actual, folder=folder)

    def _rstar2_difference(self, actual: dict[str, tuple[int, ...]], *, folder: Path) -> str:
        """Return the first difference of tensors to those of the engine's model; empty if they are equal."""
        expected = self._rstar2_model_shapes()
        if self.vllm_config.model_config.hf_config.tie_word_embeddings:
            expected = {name: shape for name, shape in expected.items() if name != TIED_HEAD}
            actual = {name: shape for name, shape in actual.items() if name != TIED_HEAD}
        return difference(expected, actual, folder=folder)

    def _rstar2_model_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors of the engine's model folder."""
        if getattr(self, "_rstar2_shapes", None) is None:
            self._rstar2_shapes = tensor_shapes(Path(self.vllm_config.model_config.model))
        return self._rstar2_shapes or {}


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a folder's safetensors files, by name, from their headers.

    The reader rejects a file that is shorter than its header requires. Raises ValueError with the name of the file.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    indexed = weight_map(folder)
    names = {path.name for path in folder.glob("*.safetensors")} if indexed is None else set(indexed.values())
    files = [folder / name for name in sorted(names)]
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
