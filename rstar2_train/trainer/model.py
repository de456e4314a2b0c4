"""The policy: a causal language model of transformers, its layers sharded over the ranks (FSDP2).

It is built on the meta device without memory, sharded, and only then filled: each rank reads its own part of each
tensor from the safetensors files, so that no rank ever holds the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import __version__ as version

from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import UnsupportedModel, find_obstacles, output_layer
from rstar2_train.capacity.weight_headers import read_tensors
from rstar2_train.trainer import attention, lora, varlen
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.logprobs import token_logprobs
from rstar2_train.trainer.model_class import build_on_meta, read_model_config
from rstar2_train.trainer.model_files import checked_names
from rstar2_train.trainer.routing import ARGUMENT, Routing, install_replay
from rstar2_train.trainer.sharding import Piece, own_pieces
from rstar2_train.weights.adapter_folder import AdapterIdentity
from rstar2_train.weights.route_format import RouteFormat

if TYPE_CHECKING:
    from rstar2_train.api.lora import LoRASpec

WRAPPER = "_checkpoint_wrapped_module."
INITIALIZED = "_is_hf_initialized"
"""Attribute by which transformers skips a parameter when it draws random ones."""


class Policy(nn.Module):
    """The forward pass under FSDP: from token ids to log-probabilities of chosen tokens.

    The output projection runs inside this forward pass, where its parameters are gathered.
    """

    def __init__(self, model: Any, *, chunk: int, reduce_once: bool = False, kernel: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.chunk = chunk
        self.reduce_once = reduce_once
        self.kernel = kernel
        """Whether attention of packed sequences is one call of the variable-length kernel."""
        self.output_layer = output_layer(model.config.to_dict())
        self.routes: RouteFormat | None = None
        """The experts of a token, if the model is a mixture of experts."""
        self.attention = "padded rows"
        """How attention runs, for the log."""
        self.adapter: AdapterIdentity | None = None
        """The adapter that is trained in place of the model."""
        self.file_names: dict[str, str] = {}
        """Names of parameters in the model folder, if it has others."""
        self.tensor_names: dict[str, tuple[str, ...]] = {}
        """Names of the tensors of each parameter that is several of them in the model folder: grouped experts."""

    def tensors_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors of a parameter in the model folder, in its order in memory."""
        return self.tensor_names.get(name, (name,))

    def forward(
        self,
        *,
        ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        lengths: tuple[int, ...] | None = None,
        plain: bool = False,
        routing: Routing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies [trained] of the targets.

        Args:
            ids: [rows, longest] padded on the right; causal attention excludes the padding. Or [1, tokens] packed.
            positions: [trained] flat index of the position that predicts each target.
            targets: [trained] token ids.
            temperature: of the sampling distribution.
            lengths: the lengths of packed sequences.
            plain: compute the logits with the model's own forward pass, for a comparison.
            routing: experts to use in place of those that a mixture chooses itself.
        """
        if plain:
            logits = self.model(input_ids=ids, use_cache=False).logits.flatten(0, 1)[positions].float()
            log_p = torch.log_softmax(logits / temperature, dim=-1)
            return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(dim=-1)
        head = self.model.get_output_embeddings()
        borders: dict[str, Any] = {} if routing is None else {ARGUMENT: routing}
        if lengths is not None:
            borders |= {
                "position_ids": attention.positions_of(lengths, ids.device),
                "packing": attention.packing_of(lengths, ids.device, kernel=self.kernel),
            }
        hidden = self.model.base_model(input_ids=ids, use_cache=False, **borders).last_hidden_state
        return token_logprobs(
            hidden=hidden.flatten(0, 1)[positions],
            head=head.weight,
            targets=targets,
            chunk=self.chunk,
            temperature=temperature,
            bias=getattr(head, "bias", None),
            layer=self.output_layer,
        )


def load_policy(
    model_dir: Path,
    *,
    compute: ComputeDevice,
    chunk: int,
    layout: Layout,
    packed: bool = False,
    compiled: bool = False,
    longest: int = 0,
    trained: bool = True,
    adapter: LoRASpec | None = None,
    seed: int = 0,
) -> Policy:
    """Build the policy of a model folder and shard it over all ranks. Collective.

    Args:
        model_dir: a folder with config.json and safetensors.
        compute: the device of this rank.
        chunk: rows of logits in memory at the same time.
        layout: shards, checkpointed layers, offload.
        packed: whether micro-batches are packed.
        compiled: compile each layer.
        longest: tokens of the longest sequence; 0: unknown.
        trained: False for a reference, which has no gradients: its weights have the number format of the computation.
        adapter: train a fresh adapter in place of the model; None: train the model.
        seed: of the initial values of an adapter, with the digest of its base.

    Raises:
        UnsupportedModel: if the model cannot be computed exactly, or its files are not those of its config.json.
    """
    identity = None
    if adapter is not None:
        base = lora.collect_base_digest(model_dir)
        identity = AdapterIdentity(base=base, rank=adapter.rank, alpha=adapter.alpha, modules=adapter.modules)
    policy = shard_policy(
        model_dir,
        compute=compute,
        chunk=chunk,
        layout=layout,
        packed=packed,
        compiled=compiled,
        longest=longest,
        dtype=torch.float32 if trained and adapter is None else compute.dtype,
        adapter=identity,
    )
    _fill_parameters(policy, model_dir, written=trained)
    if identity is not None:
        lora.initialize(trained_shards(policy), seed=f"{seed}/{identity.base}")
    return policy if trained else policy.requires_grad_(False)


def shard_policy(
    model_dir: Path,
    *,
    compute: ComputeDevice,
    chunk: int,
    layout: Layout,
    packed: bool,
    compiled: bool,
    longest: int = 0,
    dtype: torch.dtype = torch.float32,
    adapter: AdapterIdentity | None = None,
) -> Policy:
    """Build and shard the policy with uninitialised parameters; see `load_policy`."""
    config = read_model_config(model_dir)
    obstacles = list(find_obstacles(config.to_dict(), packed=packed, longest=longest, adapter=adapter is not None))
    if obstacles:
        raise UnsupportedModel(f"{model_dir / 'config.json'}: {'; '.join(obstacles)}")
    model = build_on_meta(config, dtype=dtype, attention=attention.NAME if attention.supports(config) else "sdpa")
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, nn.Embedding):  # torch would leave out the gradient of pad_token_id, often an end of turn
            module.padding_idx = None
    # No dropout: the ratio of eq. 6 compares two passes over the same tokens, which must not differ randomly.
    model.eval()
    layers = getattr(model.base_model, "layers", None)
    if layers is None or model.get_output_embeddings() is None:
        raise UnsupportedModel(
            f"{model_dir}: a {type(model).__name__} has no list of layers, or no output layer, under the usual name, "
            "so it cannot be sharded: use another model"
        )
    is_mixture = install_replay(model)
    if adapter is not None:
        lora.add_adapters(model, adapter)
    checked = max(0, len(layers) - layout.unchecked)
    # Torch compiles no part of a checkpointed layer that has a break, which attention per sequence is: then the layer
    # itself is compiled, within its wrapper.
    sinks = any(name.endswith(".sinks") for name, _ in model.named_parameters())
    obstacle = varlen.find_obstacle(config, compute.device, compute.dtype, sinks=sinks) if packed else None
    kernel = packed and obstacle is None
    within = compiled and packed and not kernel
    for number, layer in enumerate(layers):
        if within:
            layer.compile()
        # Evenly distributed: the largest number of neighbours that keep their activations stays small.
        if (number + 1) * checked // len(layers) > number * checked // len(layers):
            layers[number] = layer = checkpoint_wrapper(layer, CheckpointImpl.NO_REENTRANT, preserve_rng_state=False)
        if compiled and not within:
            layer.compile()
    policy = Policy(model, chunk=chunk, reduce_once=layout.reduce_once, kernel=kernel)
    policy.adapter = adapter
    policy.routes = RouteFormat.of(config.to_dict()) if is_mixture else None
    if kernel:
        policy.attention = "packed, by the variable-length kernel of torch"
    elif packed:
        policy.attention = f"packed, one call per sequence (the variable-length kernel: {obstacle})"
    mesh = _mesh(compute.device.type, layout)
    reduced = MixedPrecisionPolicy(param_dtype=compute.dtype, reduce_dtype=torch.float32)
    precision = MixedPrecisionPolicy() if compute.dtype is torch.float32 else reduced
    on_host = CPUOffloadPolicy(pin_memory=compute.device.type != "cpu")
    offload = on_host if layout.offload else OffloadPolicy()
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=offload)
    fully_shard(policy, mesh=mesh, mp_policy=precision, offload_policy=offload)
    policy.to_empty(device="cpu" if layout.offload else compute.device)
    _fill_buffers(model, compute.device)
    return policy


def set_last_micro_batch(policy: Policy, last: bool) -> None:
    """Prepare the reductions of the next backward pass. `last`: whether it is the last one of the update.

    The copies of an HSDP mesh are summed only then; the shards of a copy too, if the layout reduces once.
    """
    root = cast(FSDPModule, policy)
    root.set_requires_gradient_sync(last or not policy.reduce_once)
    root.set_requires_all_reduce(last)


def _mesh(device: str, layout: Layout) -> DeviceMesh:
    if layout.shards == layout.ranks:
        return init_device_mesh(device, (layout.ranks,))
    shape = (layout.ranks // layout.shards, layout.shards)
    return init_device_mesh(device, shape, mesh_dim_names=("copies", "shards"))


def stored_shards(policy: Policy) -> dict[str, DTensor]:
    """Return the parameters that the model folder has, as `named_shards`: all but those of an adapter."""
    return {name: shard for name, shard in named_shards(policy).items() if not name.endswith((lora.A, lora.B))}


def trained_shards(policy: Policy) -> dict[str, DTensor]:
    """Return the parameters that the optimiser updates, as `named_shards`: all, or those of the adapter."""
    return {name: shard for name, shard in named_shards(policy).items() if shard.requires_grad}


def named_shards(policy: Policy) -> dict[str, DTensor]:
    """Return every parameter once (tied ones under their first name), by its name in the model folder.

    Those of an adapter have the name of their layer, then lora_A or lora_B.
    """
    shards: dict[str, DTensor] = {}
    for name, parameter in policy.named_parameters():
        assert isinstance(parameter, DTensor), name
        plain = name.replace(WRAPPER, "").removeprefix("model.")
        shards[policy.file_names.get(plain, plain)] = parameter
    return shards


@torch.no_grad()
def _fill_parameters(policy: Policy, model_dir: Path, *, written: bool) -> None:
    tensors = read_tensors(model_dir)
    names = checked_names(policy.model, model_dir, stored_shards(policy), tensors, written=written)
    policy.file_names = {name: tensors[0] for name, tensors in names.items() if len(tensors) == 1}
    policy.tensor_names = {name: tensors for name, tensors in names.items() if len(tensors) > 1}
    shards = stored_shards(policy)
    has_adapter = len(shards) < len(named_shards(policy))
    if has_adapter and any(tensors != (name,) for name, tensors in names.items()):
        raise UnsupportedModel(f"{model_dir}: its files have other names than the model of transformers: remove lora")
    by_file: dict[Path, list[tuple[Piece, Tensor]]] = {}
    for name, parameter in shards.items():
        for piece in own_pieces(parameter, policy.tensors_of(name)):
            by_file.setdefault(tensors[piece.name].file, []).append((piece, parameter.to_local().view(-1)))
    infinite: list[str] = []
    for path, pieces in by_file.items():
        with safe_open(path, framework="pt") as file:
            for piece, local in pieces:
                values = file.get_slice(piece.name)
                width = math.prod(piece.shape[1:])
                part = local[piece.place]
                first = piece.start // width
                part.copy_(values[first : first + len(part) // width].reshape(-1))
                if not torch.isfinite(part).all():
                    infinite.append(f"{path}: {piece.name}")
    _refuse_infinite(infinite)


def _refuse_infinite(own: list[str]) -> None:
    """Raise UnsupportedModel on each rank if one of them read a tensor with NaN or infinity. Collective."""
    everywhere: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everywhere, own)
    if names := sorted({name for names in everywhere for name in names}):
        raise UnsupportedModel(
            f"{', '.join(names[:3])}: {len(names)} tensors have NaN or infinite values: download the folder again, or "
            "use the weights of an earlier step"
        )


@torch.no_grad()
def _fill_buffers(model: Any, device: torch.device) -> None:
    """Compute the buffers that no file contains (rotary frequencies, factors of embeddings) as transformers does.

    Raises:
        UnsupportedModel: if transformers leaves one of them as it was.
    """
    for module in model.modules():
        names = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        values: list[list[Tensor]] = []
        # Twice, from different values: a buffer that transformers does not write differs.
        for fill in (0, 1) if names else ():
            for name in names:
                setattr(module, name, torch.full_like(module._buffers[name], fill, device=device))
            with _kept_parameters(module):
                model._init_weights(module)
            values.append([module._buffers[name] for name in names])
        for name, first, second in zip(names, *values, strict=True) if names else ():
            if not torch.equal(first, second):
                raise UnsupportedModel(
                    f"transformers {version} does not compute the buffer {name} of {type(module).__name__}: use "
                    "another model"
                )


@contextmanager
def _kept_parameters(module: nn.Module) -> Iterator[None]:
    """Keep transformers from drawing new values for the parameters of a module."""
    parameters = list(module.parameters(recurse=False))
    for parameter in parameters:
        setattr(parameter, INITIALIZED, True)
    try:
        yield
    finally:
        for parameter in parameters:
            delattr(parameter, INITIALIZED)
