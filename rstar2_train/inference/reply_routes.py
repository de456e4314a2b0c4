"""The experts of a mixture in the parts of a reply: from the worker's record on the CPU, else from vLLM's outputs.

Imported only inside vLLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from vllm.platforms import current_platform

from rstar2_train.inference.route_capture import WISH
from rstar2_train.inference.turn_wire import TurnPart


class ReplyRoutes:
    """The experts of the tokens of one reply, in order."""

    def __init__(self, engine: Any, first: int) -> None:
        """`first`: first token of prompt and turn whose experts the client wishes."""
        self._engine = engine
        self._next = first
        self._start = first
        """First token whose experts the present request to the engine returns."""

    def wish(self) -> dict[str, Any]:
        """Return the sampling parameters of the next request to the engine."""
        self._start = self._next
        if current_platform.is_cpu():
            return {"extra_args": {WISH: True}}
        return {"routed_experts_prompt_start": self._start}

    async def added(self, part: TurnPart, request_id: str, output: Any, *, last: int) -> TurnPart:
        """Return a part with the experts of further tokens. None are added if the engine has not recorded them.

        `output`: of the engine. `last`: number of tokens of prompt and turn that the engine has computed.
        """
        is_final = output.finish_reason is not None
        if self._next >= last and not is_final:
            return part
        if current_platform.is_cpu():
            arguments = (request_id, self._next, last, is_final)
            [result] = await self._engine.collective_rpc("rstar2_routes", args=arguments)
        else:
            result = self._native(request_id, output, last)
        if result is None:
            return part
        row_bytes, routes = result
        self._next = last
        return replace(part, routes=routes, row_bytes=row_bytes)

    def _native(self, request_id: str, output: Any, last: int) -> tuple[int, bytes] | None:
        """Return bytes per row and rows of vLLM's own record."""
        rows = output.routed_experts
        if rows is None:
            processor = self._engine.output_processor
            [internal_id] = processor.external_req_ids.get(request_id) or [""]
            state = processor.request_states.get(internal_id)
            if state is None or not state.routed_experts_chunks:
                return None
            rows = np.concatenate(state.routed_experts_chunks)
        if self._start + len(rows) < last:
            return None
        wished = np.ascontiguousarray(rows[self._next - self._start : last - self._start])
        return wished[0].nbytes if len(wished) else 0, wished.tobytes()
