"""Measures at each start whether the trainer computes the log-probabilities of a model as transformers does.

Two comparisons, in seconds:

- `check_family`: a small random model of the same class, in float32 on the CPU: written to a folder, loaded, sharded
  and run as the real one. It finds an output layer, a window, a name or a border of packed rows that is wrong.
- `check_weights`: the loaded model itself, on its device and in its number format, against its own forward pass.

A difference above the tolerance is refused with the figure and the likely cause.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM

from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.model import Policy, load_policy
from rstar2_train.trainer.model_class import read_model_config, refused
from rstar2_train.trainer.small_config import WINDOW, small_config

LENGTHS = (2 * WINDOW + 5, 2, WINDOW + 3, 17)
"""Lengths of the compared sequences: longer and shorter than the window of the small model."""
TOLERANCE = 1e-3
"""Largest difference of a log-probability in float32, in nats: rounding is below 1e-5."""
WIDE_TOLERANCE = 0.15
"""Largest mean difference in a 16-bit format, in nats: rounding of the model's own logits is about 0.03."""
ACTIVATIONS = 1_000_000
"""More layers than any model has: no layer is checkpointed."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Absolute differences of log-probabilities, in nats."""

    largest: float
    mean: float

    def exceeds(self, dtype: torch.dtype) -> bool:
        """Return whether rounding in this format cannot explain them."""
        value, limit = (self.largest, TOLERANCE) if dtype.itemsize >= 4 else (self.mean, WIDE_TOLERANCE)
        return not value <= limit


def check_weights(policy: Policy, compute: ComputeDevice, *, packed: bool) -> Differences:
    """Compare the loaded policy with its own forward pass. Collective.

    Raises:
        UnsupportedModel: if they differ.
    """
    rows = _rows(policy.model.config.vocab_size, compute.device)
    # Not compiled: these short rows would use up graphs of the training step.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        with _own_attention(policy.model):
            expected = torch.cat([scored(policy, [row], packed=False, plain=True) for row in rows])
        actual = scored(policy, rows, packed=packed)
        differences = _between(actual, expected)
        if differences.exceeds(compute.dtype):
            padded = _between(scored(policy, rows, packed=False), expected) if packed else None
            raise UnsupportedModel(_refusal(policy.model, differences, padded, compute.dtype))
    return differences


def check_family(model_dir: Path, *, packed: bool) -> Differences:
    """Compare a small random model of the class of a model folder with transformers. Collective, if there are ranks.

    Raises:
        UnsupportedModel: if they differ, or if no small model of this class can be built or loaded.
    """
    whole = read_model_config(model_dir)
    with refused(f"{model_dir}: a small model of {type(whole).__name__} cannot be built, so it could not be measured"):
        model = _random_model(small_config(whole))
        rows = _rows(model.config.vocab_size, torch.device("cpu"))
        with torch.no_grad():
            expected = torch.cat([row_logprobs(model(row[None]).logits[0], row) for row in rows])
    with tempfile.TemporaryDirectory(prefix="rstar2-check-") as name:
        _save(model, Path(name))
        compute = ComputeDevice(device=torch.device("cpu"), backend="gloo", dtype=torch.float32)
        ranks = dist.get_world_size()
        layout = Layout(ranks=ranks, shards=ranks, tokens=sum(LENGTHS), unchecked=ACTIVATIONS)
        try:
            policy = load_policy(
                Path(name), compute=compute, chunk=16, layout=layout, packed=packed, longest=max(LENGTHS)
            )
        except ValueError as error:
            raise UnsupportedModel(str(error).replace(name, str(model_dir))) from error
    with torch.no_grad():
        differences = _between(scored(policy, rows, packed=packed), expected)
        if differences.exceeds(torch.float32):
            padded = _between(scored(policy, rows, packed=False), expected) if packed else None
            raise UnsupportedModel(_refusal(model, differences, padded, torch.float32))
    return differences


def check_folder(model_dir: Path, *, packed: bool) -> Differences:
    """Run `check_family` in this process, outside of a trainer. Raises UnsupportedModel."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with refused(f"{model_dir}: the class could not be measured"):
            return check_family(model_dir, packed=packed)
    finally:
        dist.destroy_process_group()


def _refusal(model: Any, differences: Differences, padded: Differences | None, dtype: torch.dtype) -> str:
    if padded is not None and not padded.exceeds(dtype):
        cause = (
            "padded rows are right, so packed sequences attend to each other: the class does not pass their borders to "
            "its attention, or has layers that need none; set spec.trainer.packing: false"
        )
    else:
        cause = (
            "the class changes attention, positions or logits in a way that this trainer does not know; use another "
            "model, or report its model_type"
        )
    return (
        f"the log-probabilities of the trainer differ from those of {type(model).__name__} in transformers by "
        f"{differences.largest:.2g} nats (mean {differences.mean:.2g}): {cause}"
    )


def _random_model(config: Any) -> Any:
    """Return a small model whose biases and norms are random too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name:
                torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.2)
    return model


def _save(model: Any, folder: Path) -> None:
    """Write a model folder on each rank: transformers writes only at rank 0, and the hosts share no folder."""
    files: list[Any] = [None]
    if dist.get_rank() == 0:
        model.save_pretrained(folder)
        files = [{path.name: path.read_bytes() for path in folder.iterdir()}]
    dist.broadcast_object_list(files)
    for name, content in files[0].items():
        (folder / name).write_bytes(content)


def _rows(vocabulary: int, device: torch.device) -> list[Tensor]:
    """Return rows of random tokens, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, vocabulary, (length,), generator=generator).to(device) for length in LENGTHS]


def scored(policy: Policy, rows: list[Tensor], *, packed: bool, plain: bool = False) -> Tensor:
    """Return the log-probability of each token after the first of each row."""
    lengths = [len(row) for row in rows]
    width = max(lengths)
    if packed:
        ids = torch.cat(rows)[None]
        starts = [sum(lengths[:number]) for number in range(len(rows))]
    else:
        ids = rows[0].new_zeros(len(rows), width)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
        starts = [number * width for number in range(len(rows))]
    spans = [torch.arange(start, start + len(row) - 1) for start, row in zip(starts, rows, strict=True)]
    logprobs, _ = policy(
        ids=ids,
        positions=torch.cat(spans).to(ids.device),
        targets=torch.cat([row[1:] for row in rows]),
        lengths=tuple(lengths) if packed else None,
        plain=plain,
    )
    # Without a backward pass the root's parameters would stay gathered.
    cast(FSDPModule, policy).reshard()
    return cast(Tensor, logprobs)


def row_logprobs(logits: Tensor, row: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)[:-1].gather(1, row[1:, None]).squeeze(1)


def _between(actual: Tensor, expected: Tensor) -> Differences:
    gaps = (actual.double() - expected.double()).abs()
    return Differences(float(gaps.max()), float(gaps.mean()))


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    """Use the plain attention of the model's class, with the masks of transformers."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
