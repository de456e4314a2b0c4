"""Node agent: enforces NetworkPolicies and provisions volumes, as a network plugin and a provisioner would.

Runs inside the cluster's namespaces as a service (`python -m tests.kube_node.agent KUBECONFIG`) and watches the API
server. NetworkPolicies, pods and namespaces become nftables rules (network_policies.py) shortly after each change. A
claim of the default StorageClass gets a folder and a volume; both are deleted when the volume is released (volumes.py).
The agent exits when the API server is unreachable, and init.py restarts it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.kube_node import network_policies, volumes
from tests.kube_node.layout import INSIDE

Object = dict[str, Any]
FOLLOWED = {
    "namespaces": "/api/v1/namespaces",
    "pods": "/api/v1/pods",
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "claims": "/api/v1/persistentvolumeclaims",
    "volumes": "/api/v1/persistentvolumes",
}
SETTLE_SECONDS = 0.02  # several objects change together


class Follower:
    """What the API server has, kept up to date by watches."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in FOLLOWED}
        self.complete: set[str] = set()
        self.changed = asyncio.Event()

    def of(self, kind: str) -> list[Object]:
        return list(self.objects[kind].values())

    async def follow(self, kind: str) -> None:
        """List and watch one kind; a watch that the server ends is taken up again from a new list."""
        path = FOLLOWED[kind]
        while True:
            async with self.session.get(path) as answer:
                answer.raise_for_status()
                listing = await answer.json()
            self.objects[kind] = {item["metadata"]["uid"]: item for item in listing["items"]}
            self.complete.add(kind)
            self.changed.set()
            options = {"watch": "1", "resourceVersion": listing["metadata"]["resourceVersion"]}
            async with self.session.get(path, params=options) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    self.take(kind, event)

    def take(self, kind: str, event: Object) -> None:
        uid = event["object"]["metadata"]["uid"]
        if event["type"] == "DELETED":
            self.objects[kind].pop(uid, None)
        else:
            self.objects[kind][uid] = event["object"]
        self.changed.set()

    async def on_change(self, act: Callable[[], Awaitable[None]]) -> None:
        """Call `act` whenever something has changed, once everything has been listed."""
        while True:
            await self.changed.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self.changed.clear()
            if len(self.complete) == len(FOLLOWED):
                await act()


class Agent:
    """Acts on what the follower sees."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.applied = ""

    async def act(self) -> None:
        await self.enforce()
        await self.provision()

    async def enforce(self) -> None:
        """Put the policies into force, in one transaction, when that changes any rule."""
        seen = self.follower
        rules = network_policies.ruleset(seen.of("policies"), seen.of("pods"), seen.of("namespaces"))
        if rules != self.applied:
            await asyncio.to_thread(subprocess.run, ["nft", "-f", "-"], input=rules.encode(), check=True)
            self.applied = rules
            (INSIDE / "policies.nft").write_text(rules)  # for people who ask why something is denied

    async def provision(self) -> None:
        """Make volumes for claims that wait for one; remove those that were released."""
        for claim in volumes.claims_to_serve(self.follower.of("claims"), self.follower.of("volumes")):
            volume = volumes.volume_for(claim)
            Path(volume["spec"]["local"]["path"]).mkdir(parents=True, exist_ok=True)
            await self.request("POST", FOLLOWED["volumes"], volume, but=409)
        for volume in volumes.volumes_to_remove(self.follower.of("volumes")):
            shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
            await self.request("DELETE", f"{FOLLOWED['volumes']}/{volume['metadata']['name']}", but=404)

    async def request(self, method: str, path: str, body: Object | None = None, *, but: int) -> None:
        """One write; the status `but` says that it was done already."""
        async with self.follower.session.request(method, path, json=body) as answer:
            if answer.status != but:
                answer.raise_for_status()


async def run(kubeconfig: Path) -> None:
    """Follow and act until something fails, which ends the program."""
    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    context = ssl.create_default_context(cafile=str(INSIDE / "pki/ca.crt"))
    context.load_cert_chain(INSIDE / "pki/admin.crt", INSIDE / "pki/admin.key")
    connector = aiohttp.TCPConnector(ssl=context)
    endless = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(
        server, connector=connector, timeout=endless, read_bufsize=2**24, raise_for_status=False
    ) as session:
        follower = Follower(session)
        agent = Agent(follower)
        async with asyncio.TaskGroup() as tasks:
            for kind in FOLLOWED:
                tasks.create_task(follower.follow(kind))
            tasks.create_task(follower.on_change(agent.act))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
