"""Records the experts that a mixture chooses in a vLLM worker on the CPU, for each token of a request.

vLLM returns them itself (`--enable-return-routed-experts`), but only in its second model runner, which needs Triton:
the CPU has the first one. A row is kept per slot of the KV cache, with the keys and values that were computed with
these experts: a request that finds a prefix in the cache finds its experts too. A request has one row per token, from
the step that computed the token first. Imported only inside vLLM.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial, wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rstar2_train.weights.route_format import RouteFormat

WISH = "rstar2_routes"
"""Extra argument of a request whose rows are kept."""
ENDED = 1024
"""Requests whose rows are kept after their end, until they are fetched: those that were cancelled are never fetched."""
_ATTRIBUTE = "_rstar2_routes"


def install() -> None:
    """Record in each step of a model runner on the CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    execute = CPUModelRunner.execute_model

    @wraps(execute)
    def execute_and_record(self: Any, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        capture = route_capture(self)
        result = execute(self, scheduler_output, *arguments, **named)
        if capture is not None:
            capture.end(scheduler_output.finished_req_ids)
            if scheduler_output.total_num_scheduled_tokens:
                capture.take(scheduler_output.num_scheduled_tokens)
        return result

    CPUModelRunner.execute_model = execute_and_record


def route_capture(runner: Any) -> RouteCapture | None:
    """Return the record of a model runner; None if its model is no mixture."""
    if not hasattr(runner, _ATTRIBUTE):
        form = RouteFormat.of(runner.model_config.hf_text_config.to_dict())
        setattr(runner, _ATTRIBUTE, None if form is None else RouteCapture(runner, form))
    capture: RouteCapture | None = getattr(runner, _ATTRIBUTE)
    return capture


class RouteCapture:
    """The experts of one worker's requests."""

    def __init__(self, runner: Any, form: RouteFormat) -> None:
        from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        self._runner, self._form = runner, form
        self._step: dict[int, Tensor] = {}
        """Experts of the tokens of the present step, by layer."""
        self._slots = np.zeros((0, form.layers, form.experts), np.uint16)
        """Experts of each slot of the KV cache."""
        self._rows: dict[str, _Rows] = {}
        """Rows of each running request, by its name outside of the engine."""
        self._ended: OrderedDict[str, _Rows] = OrderedDict()
        for module in runner.get_model().modules():
            if isinstance(module, MoERunner):
                if not isinstance(module.router, BaseRouter):
                    raise TypeError(f"the experts of a {type(module.router).__name__} cannot be recorded")
                module.router.set_capture_fn(partial(self._step.__setitem__, module.layer_id))

    def take(self, scheduled: dict[str, int]) -> None:
        """Take the experts of a step that has ended. `scheduled`: tokens of each request in it."""
        batch = self._runner.input_batch
        total = sum(scheduled.values())
        rows = np.zeros((total, self._form.layers, self._form.experts), np.uint16)
        for layer, experts in self._step.items():
            rows[:, layer] = experts[:total].numpy()
        self._step.clear()
        table = batch.block_table[0]
        first = 0
        for number, request_id in enumerate(batch.req_ids):
            count, start = scheduled[request_id], int(batch.num_computed_tokens_cpu[number])
            own, first = rows[first : first + count], first + count
            places = self._places(table, number, start, start + count)
            self._slots = _with_rows(self._slots, int(places.max()) + 1)
            self._slots[places] = own
            if not self._is_wished(request_id):
                continue
            kept = self._rows.setdefault(_outer_name(request_id), _Rows(self._slots[:0]))
            if kept.count < start:  # the cache had a prefix
                kept.append(self._slots[self._places(table, number, kept.count, start)])
            kept.append(own[kept.count - start :])  # a request that was preempted computes tokens again

    def end(self, request_ids: set[str]) -> None:
        """Keep the rows of requests that have ended until they are fetched."""
        for name in map(_outer_name, request_ids):
            rows = self._rows.pop(name, None)
            if rows is not None:
                self._ended[name] = rows
        while len(self._ended) > ENDED:
            self._ended.popitem(last=False)

    def fetch(self, name: str, first: int, last: int, *, final: bool) -> tuple[int, bytes] | None:
        """Return bytes per row and the rows of tokens of a request, from `first` to before `last`; None: not known.

        `name`: of the request outside of the engine. `final`: forget the request.
        """
        requests = self._rows if name in self._rows else self._ended
        rows = requests.pop(name, None) if final else requests.get(name)
        if rows is None or rows.count < last:
            return None
        return self._form.row_bytes, self._form.encode(rows.values[first:last])

    def _is_wished(self, request_id: str) -> bool:
        parameters = self._runner.requests[request_id].sampling_params
        return parameters is not None and bool((parameters.extra_args or {}).get(WISH))

    @staticmethod
    def _places(table: Any, number: int, first: int, last: int) -> NDArray[np.int64]:
        """Return the slots of tokens of a request of the batch."""
        positions = np.arange(first, last)
        blocks = table.get_numpy_array()[number, positions // table.block_size]
        places: NDArray[np.int64] = blocks.astype(np.int64) * table.block_size + positions % table.block_size
        return places


class _Rows:
    """The rows of a request."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values, self.count = values, 0
        """Rows, with space for more behind them; number of rows."""

    def append(self, rows: NDArray[Any]) -> None:
        self.values = _with_rows(self.values, self.count + len(rows))
        self.values[self.count : self.count + len(rows)] = rows
        self.count += len(rows)


def _outer_name(request_id: str) -> str:
    """Return the name of a request outside of the engine, which adds a suffix to it."""
    return request_id.rpartition("-")[0]


def _with_rows(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array with at least this number of rows; its length doubles."""
    if rows <= len(values):
        return values
    more = np.zeros((max(rows, 2 * len(values)) - len(values), *values.shape[1:]), values.dtype)
    return np.concatenate([values, more])
