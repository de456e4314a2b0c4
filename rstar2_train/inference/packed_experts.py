"""Packs the experts of a mixture again when vLLM loads new weights on the CPU.

vLLM packs them for its kernel only at the first load. Later ones leave the weights as they are in the files, and the
kernel reads them as packed: other log-probabilities, without an error. Imported only inside vLLM.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def install() -> None:
    """Let each load of experts on the CPU be as the first one."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    process = UnquantizedFusedMoEMethod.process_weights_after_loading

    @wraps(process)
    def process_as_first(self: Any, layer: Any) -> Any:
        self.moe_kernel = None
        return process(self, layer)

    UnquantizedFusedMoEMethod.process_weights_after_loading = process_as_first
