"""The Lease if it is deleted manually, or if requests hang: at any time there is at most one leader."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import lease
from rstar2_operator.lease import LeaderLease
from rstar2_operator.main import lead_while_held
from rstar2_operator.settings import LEASE_SECONDS

pytestmark = pytest.mark.usefixtures("virtual_time")


class Api:
    """One Lease, as the API server keeps it."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] | None = None
        self.version = 0

    def holder(self) -> str:
        return self.kept["spec"]["holderIdentity"] if self.kept else ""

    async def read(self, _kind: str, _namespace: str, _name: str) -> dict[str, Any]:
        if self.kept is None:
            raise ApiException(status=404)
        return copy.deepcopy(self.kept)

    async def create(self, body: dict[str, Any]) -> None:
        if self.kept is not None:
            raise ApiException(status=409)
        await self._keep(body)

    async def replace(self, body: dict[str, Any]) -> None:
        if self.kept is None or body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiException(status=409)
        await self._keep(body)

    async def _keep(self, body: dict[str, Any]) -> None:
        self.version += 1
        self.kept = copy.deepcopy(body)
        self.kept["metadata"]["resourceVersion"] = str(self.version)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(lease, "RETRY_SECONDS", 0.01)
    return Api()


def replica(api: Api, name: str, *, duration: int = LEASE_SECONDS) -> LeaderLease:
    return LeaderLease(api, namespace="n", name="l", identity=name, duration=duration)  # type: ignore[arg-type]


async def test_lease_deleted_is_recreated_by_its_leader(api: Api) -> None:
    """A standby does not acquire a deleted Lease while its leader runs."""
    leader, standby = replica(api, "a"), replica(api, "b")
    await leader.acquire()
    waits = asyncio.create_task(standby.acquire())
    await asyncio.sleep(0.05)  # it has seen the holder
    api.kept = None
    await asyncio.sleep(0.05)
    assert not waits.done() and api.kept is None
    holds = asyncio.create_task(leader.hold())
    await asyncio.sleep(0.05)
    assert api.holder() == "a"
    assert not waits.done() and not holds.done()
    waits.cancel()
    holds.cancel()


async def test_lease_deleted_without_leader_goes_to_the_standby(api: Api) -> None:
    """A standby acquires a deleted Lease after its duration."""
    await replica(api, "a").acquire()
    standby = replica(api, "b", duration=0)
    waits = asyncio.create_task(standby.acquire())
    await asyncio.sleep(0.05)
    api.kept = None
    async with asyncio.timeout(60):
        await waits
    assert api.holder() == "b"


async def test_lease_hanging_requests_end_leadership_in_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader whose renewals hang stops before the Lease is stale."""
    leader = replica(api, "a", duration=1)
    await leader.acquire()

    async def hangs(*_: str) -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(api, "read", hangs)
    async with asyncio.timeout(30):
        await leader.hold()


async def test_lease_of_another_holder_ends_leadership_immediately(api: Api) -> None:
    """A leader stops as soon as it sees another holder, long before its own time is over."""
    leader = replica(api, "a", duration=900)
    await leader.acquire()
    api.kept = None
    await replica(api, "new").acquire()  # one that has never seen the old Lease
    async with asyncio.timeout(300):  # no test waits as long, on any machine
        await leader.hold()
    assert api.holder() == "new"


@pytest.mark.parametrize("lost", [True, False])
async def test_main_lost_lease_stops_the_workers_immediately(lost: bool) -> None:
    """Without the Lease the workers are cancelled, even if the watches do not stop; on request they may finish."""
    stop, release = asyncio.Event(), asyncio.Event()

    async def lead() -> None:
        await stop.wait()
        await asyncio.sleep(0.2 if not lost else 3600)

    leading, held = asyncio.create_task(lead()), asyncio.create_task(release.wait())
    stopping = asyncio.create_task(stop.wait())
    (release if lost else stop).set()
    code = await lead_while_held(leading, held, stopping, stop=stop)  # type: ignore[arg-type]
    assert (code, leading.cancelled(), held.cancelled()) == (int(lost), lost, not lost)
    stopping.cancel()
