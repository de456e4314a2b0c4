"""Lets vLLM load the experts and the attention sinks of GPT-OSS again.

At each load after the first one a parameter has no memory until its `weight_loader` has had all of its layer. vLLM's
class copies the stacked experts and the sinks to the parameters itself, so they kept the values of the first load,
without an error. Imported only inside vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any

from torch import Tensor

_EXPERTS = ".mlp.experts."


def install() -> None:
    """Give each expert, and the sinks, to the weight loader of their parameter."""
    from vllm.model_executor.models.gpt_oss import GptOssModel

    load = GptOssModel.load_weights

    @wraps(load)
    def load_by_weight_loaders(self: Any, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        sinks: set[str] = set()
        return load(self, _by_weight_loaders(self, weights, sinks)) | sinks

    GptOssModel.load_weights = load_by_weight_loaders


def _by_weight_loaders(
    model: Any, weights: Iterable[tuple[str, Tensor]], sinks: set[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors with each expert under a name of its own, which vLLM knows, and load the sinks.

    `sinks`: receives the names of the loaded ones.
    """
    for name, tensor in weights:
        if name.endswith(".sinks"):
            _load_sinks(model, name, tensor)
            sinks.add(name)
        elif _EXPERTS in name:
            layer, _, kind = name.partition(_EXPERTS)
            yield from ((f"{layer}{_EXPERTS}{number}.{kind}", expert) for number, expert in enumerate(tensor))
        else:
            yield name, tensor


def _load_sinks(model: Any, name: str, tensor: Tensor) -> None:
    """Load the sinks of this worker's heads."""
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    parameter = model.get_parameter(name)
    heads = len(parameter)
    own = tensor.narrow(0, heads * get_tensor_model_parallel_rank(), heads)
    getattr(parameter, "weight_loader", default_weight_loader)(parameter, own)
