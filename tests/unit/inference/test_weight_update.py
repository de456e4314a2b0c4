"""A collective transfer that fails falls back to the files of the same version; an adapter follows its base."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.scripted_client import ScriptedClient
from rstar2_train.inference.turn_wire import BASE, SERVE
from rstar2_train.inference.weight_update import (
    AdapterUpdate,
    BucketUpdate,
    CollectiveUpdate,
    DeltaUpdate,
    FolderUpdate,
)
from rstar2_train.storage.manifest import IndexEntry
from rstar2_train.weights.adapter_check import AdapterOrder
from rstar2_train.weights.adapter_folder import AdapterIdentity
from rstar2_train.weights.experimental.transfer import Offer
from rstar2_train.weights.version_store import VersionManifest


class FakeClient:
    """Records how the engine gets its weights."""

    url = "http://engine"

    def __init__(self, *, fails: bool = False) -> None:
        self.loads: list[str] = []
        self.base: str | None = None
        self.paths: list[Path] = []
        self._fails = fails

    async def workers(self) -> int:
        return 2

    async def receive_weights(self, offer: Offer, *_: object, **__: object) -> None:
        self.loads.append(f"transfer to {offer.workers} workers")
        if self._fails:
            raise EngineUnavailable("the group is broken")

    async def load_chain(self, chain: Sequence[Path], *_: object, fresh: bool, **__: object) -> None:
        self.loads.append("fresh files" if fresh else "files")
        self.paths += chain

    async def load_weights(self, folder: Path, version: str, **_: object) -> None:
        self.base = None
        self.loads.append(f"folder {folder.name}")
        self.paths.append(folder)

    async def base_name(self) -> str | None:
        return self.base

    async def name_base(self, name: str) -> None:
        self.base = name

    async def copy_folders(self, entries: Sequence[IndexEntry], *, seconds: float) -> list[Path]:
        return [Path("/copies") / entry.name for entry in entries]

    async def load_adapter(self, order: AdapterOrder, **_: object) -> None:
        self.loads.append(f"adapter {order.version}")
        self.paths.append(Path(order.folder))

    async def score(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float]]:
        raise AssertionError("no probe")

    async def mark_loading(self) -> None:
        raise AssertionError("no probe")


class FakeSender:
    """A trainer that offers transfers, or is lost."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def start_transfer(self, folder: Path, *, workers: int, seconds: float) -> Offer:
        if self._error:
            raise self._error
        return Offer("host", 1, workers, seconds)


@pytest.mark.parametrize(
    ("fails", "error", "is_open", "fresh", "loads"),
    [
        (False, None, True, False, ["transfer to 2 workers"]),
        (True, None, True, False, ["transfer to 2 workers", "files"]),
        (False, StageFailed("RanksLost", "rank 0 crashed", retryable=True), True, False, ["files"]),
        (False, OSError("the storage is gone"), True, False, ["files"]),
        (False, TimeoutError(), True, False, ["files"]),
        (False, None, False, False, ["files"]),
        (False, None, True, True, ["fresh files"]),
    ],
)
async def test_collective_update_falls_back_to_files(
    fails: bool, error: Exception | None, is_open: bool, fresh: bool, loads: list[str]
) -> None:
    """A broken group, a lost trainer, lost files, a closed transfer and a refused engine read the files, also later."""
    client: Any = FakeClient(fails=fails)
    manifest = VersionManifest("id", "v", None, [])
    update = CollectiveUpdate(DeltaUpdate([Path("/v")], "v", "id"), FakeSender(error), manifest, 1, is_open)
    await update.load(client, seconds=60, fresh=fresh, keep_requests=False)
    assert client.loads == loads
    assert bool(update.failures) == (fails or error is not None)
    await update.load(client, seconds=60, fresh=fresh, keep_requests=False)
    assert client.loads[len(loads) :] == loads[-1:]


async def test_update_for_fixed_weights_is_rejected() -> None:
    """A server whose weights are fixed, such as one of another operator, takes a folder but no chain of versions."""
    scripted = ScriptedClient("http://script", token="", session=None, turns=[])
    with pytest.raises(EngineRejected, match="http://script has fixed weights"):
        await DeltaUpdate([Path("/v")], "v", "id").load(scripted, seconds=60, fresh=False, keep_requests=False)


async def test_adapter_update_loads_its_base_only_where_it_is_missing() -> None:
    """An engine that is new, has another base, or was refused by the probe reads the base; others only the adapter."""
    client: Any = FakeClient()
    base = FolderUpdate.make(Path("/base"), "v0", base_name="attempt /base")

    async def load(version: str, *, fresh: bool = False) -> list[str]:
        adapter = AdapterIdentity(base="", rank=8, alpha=8, modules=("q_proj",))
        order = AdapterOrder(folder="/v", version=version, version_id="id", adapter=adapter)
        update = AdapterUpdate(base, order)
        client.loads.clear()
        await update.load(client, seconds=60, fresh=fresh, keep_requests=True)
        assert update.version == version and client.base == base.base_name
        return [*client.loads]

    assert await load("v1") == ["folder base", "adapter v1"]
    assert await load("v2") == ["adapter v2"]
    assert await load("v2", fresh=True) == ["folder base", "adapter v2"]
    await FolderUpdate.make(Path("/merged"), "final").load(client, seconds=60, fresh=False, keep_requests=False)
    assert client.base is None
    assert await load("v3") == ["folder base", "adapter v3"]


async def test_bucket_update_loads_the_engines_copies() -> None:
    """Each kind of update loads the copies of its folders, in order; version and identity are those of the update."""
    adapter = AdapterIdentity(base="", rank=8, alpha=8, modules=("q_proj",))
    order = AdapterOrder(folder="/w/a", version="v", version_id="id", adapter=adapter)
    base = FolderUpdate.make(Path("/w/base"), "v", base_name="attempt /w/base")
    for update in (base, DeltaUpdate([Path("/w/a"), Path("/w/b")], "v", "id"), AdapterUpdate(base, order)):
        client: Any = FakeClient()
        published = {
            path: IndexEntry(name=path.name, attempt=1, writer="a" * 32, sha256="0" * 64) for path in update.folders
        }
        shared = BucketUpdate(update, published)
        await shared.load(client, seconds=60, fresh=False, keep_requests=False)
        assert client.paths == [Path("/copies") / path.name for path in update.folders]
        assert shared.version == "v" and client.base == (None if isinstance(update, DeltaUpdate) else base.base_name)


class RecordedClient(EngineClient):
    """An engine that accepts every request, and records its route."""

    def __init__(self, **options: Any) -> None:
        super().__init__("http://engine", token="", session=None, **options)  # type: ignore[arg-type]
        self.routes: list[str] = []

    async def call(self, method: str, path: str, *, seconds: float, body: dict[str, Any] | None = None) -> Any:
        self.routes.append(path)
        return {"success": True, "ok": True, "results": [{"ok": True}]}

    async def weight_version(self) -> str:
        return "v1"


@pytest.mark.parametrize("has_adapters", [False, True])
async def test_load_has_requests_for_adapters_only_with_lora(has_adapters: bool) -> None:
    """A job without LoRA stops its engines for no request about adapters."""
    client = RecordedClient(has_adapters=has_adapters)
    await client.load_weights(Path("/model"), "v1", seconds=60)
    assert [route for route in client.routes if route in (BASE, SERVE)] == ([BASE, SERVE] if has_adapters else [])
