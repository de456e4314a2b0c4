"""The adapters of one engine: which it has, which it serves, and which of its requests still use one.

An update first adds the new adapter, while the engine generates with the one before (`load`). Then the client stops the
requests, and the engine serves the new one (`serve`). Each adapter that is added has a name and an id of its own, and
each version a path: vLLM's prefix cache has the name in its keys, it reads the path again for an adapter that it lost,
and a path that is loaded in place would be read again at every step of the model. `generate_route.py` has the routes.
Imported only inside vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineGenerateError

from rstar2_train.weights.adapter_check import AdapterOrder, verify_adapter
from rstar2_train.weights.shard_file import ShardFileInvalid
from rstar2_train.weights.version_store import read_manifest


@dataclass(slots=True, eq=False)
class Adapter:
    """One version in the engine."""

    version: str
    request: LoRARequest
    files: dict[str, str]
    """SHA-256 of its files by name."""
    users: int = 0
    """Number of requests that use it."""


class EngineAdapters:
    """The adapters of one engine. Its methods run in the event loop of the engine's server."""

    def __init__(self) -> None:
        self.base: str | None = None
        """Name of the weights under the adapters, which a client has set; None: unknown."""
        self._adapters: list[Adapter] = []
        """All that vLLM has."""
        self._loaded: Adapter | None = None
        """The one that was added last."""
        self._served: Adapter | None = None
        """The one of new requests; None: the engine's own weights."""
        self._by_version: dict[str, Adapter] = {}
        """Each one that was served on the present base."""
        self._ids = itertools.count(1)

    async def load(self, engine: Any, order: AdapterOrder) -> str:
        """Verify an adapter and add it to vLLM; return why it is refused, empty if it is not.

        The engine keeps generating with the adapter that it serves.
        """
        self._loaded = self._served
        await self.remove_unused(engine)
        try:
            layers = await asyncio.to_thread(verify_adapter, order)
        except ShardFileInvalid as error:
            return str(error)
        for mismatch in await engine.collective_rpc("rstar2_adapter_mismatch", args=(layers,)):
            if mismatch:
                return f"{order.folder}: {mismatch}"
        manifest = await asyncio.to_thread(read_manifest, Path(order.folder))
        files = {file.name: file.digest for file in manifest.files}
        for other in self._adapters:
            if other.request.path == order.folder and other.files != files:
                return f"{order.folder} had other files as version {other.version}: a version needs a path of its own"
        number = next(self._ids)
        request = LoRARequest(f"{Path(order.folder).name}-{number}", number, order.folder)
        adapter = Adapter(order.version, request, files)
        self._adapters.append(adapter)
        try:
            await engine.add_lora(adapter.request)
        except Exception as error:  # vLLM passes on its errors in a type of its own
            await self.remove_unused(engine)
            return f"{order.folder}: vLLM does not load the adapter: {error}"
        arguments = (number, order.folder, order.adapter.scale)
        results = await engine.collective_rpc("rstar2_adapter_difference", args=arguments)
        bound = {layer for _, layers_of_worker in results for layer in layers_of_worker}
        problems = [problem for problem, _ in results if problem]
        if unbound := sorted(layers.keys() - bound):
            problems.append(f"vLLM has bound {unbound[0]} to no layer of its model ({len(unbound)} such)")
        if problems:
            await self.remove_unused(engine)
            return f"{order.folder}: {problems[0]}"
        self._loaded = adapter
        return ""

    def serve(self, version: str | None) -> str:
        """Use the adapter that was loaded last for new requests, or with None the engine's own weights.

        Return why it cannot, empty if it can.
        """
        if version is None:
            self._served = None
            self._by_version.clear()
            return ""
        if self._loaded is None or self._loaded.version != version:
            return f"the engine has no adapter of version {version}"
        self._served = self._by_version[version] = self._loaded
        return ""

    @contextmanager
    def use(self, *, base: bool = False) -> Iterator[Adapter | None]:
        """Provide the adapter of a new request, and keep it in the engine meanwhile; `base`: none in any case."""
        adapter = None if base else self._served
        if adapter is None:
            yield None
            return
        adapter.users += 1
        try:
            yield adapter
        finally:
            adapter.users -= 1

    def verified(self, adapter: Adapter | None, versions: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        """Return the weight versions of a request, if its tokens have the adapter of these versions.

        Raises EngineGenerateError if the engine changed its version between the request's start and its tokens.
        """
        for version, _ in versions:
            if self._by_version.get(version) is not adapter:
                name = adapter.version if adapter else "the base"
                raise EngineGenerateError(f"a request with the adapter of {name} got tokens of version {version}")
        return versions

    async def remove_unused(self, engine: Any) -> None:
        """Remove all adapters from vLLM that no request uses or will use."""
        for adapter in list(self._adapters):
            if adapter.users == 0 and adapter not in (self._served, self._loaded):
                self._adapters.remove(adapter)
                await engine.remove_lora(adapter.request.lora_int_id)
