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
    """The objects of the API server, kept up to date by watches."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in FOLLOWED}
        self.complete: set[str] = set()
        self.changed = asyncio.Event()

    def items(self, kind: str) -> list[Object]:
        return list(self.objects[kind].values())

    async def follow(self, kind: str) -> None:
        """List and watch one kind; list it again when the server closes the watch."""
        path = FOLLOWED[kind]
        while True:
            async with self.session.get(path) as response:
                response.raise_for_status()
                listing = await response.json()
            self.objects[kind] = {item["metadata"]["uid"]: item for item in listing["items"]}
            self.complete.add(kind)
            self.changed.set()
            options = {"watch": "1", "resourceVersion": listing["metadata"]["resourceVersion"]}
            async with self.session.get(path, params=options) as response:
                response.raise_for_status()
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    self.update(kind, event)

    def update(self, kind: str, event: Object) -> None:
        uid = event["object"]["metadata"]["uid"]
        if event["type"] == "DELETED":
            self.objects[kind].pop(uid, None)
        else:
            self.objects[kind][uid] = event["object"]
        self.changed.set()

    async def on_change(self, act: Callable[[], Awaitable[None]]) -> None:
        """Call `act` after each change, once every kind has been listed."""
        while True:
            await self.changed.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self.changed.clear()
            if len(self.complete) == len(FOLLOWED):
                await act()


class Agent:
    """Enforces policies and provisions volumes after each change of the follower's objects."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.applied = ""

    async def act(self) -> None:
        await self.enforce()
        await self.provision()

    async def enforce(self) -> None:
        """Load the rules of all policies in one transaction, if any rule has changed."""
        follower = self.follower
        rules = network_policies.ruleset(
            follower.items("policies"), follower.items("pods"), follower.items("namespaces")
        )
        if rules != self.applied:
            await asyncio.to_thread(subprocess.run, ["nft", "-f", "-"], input=rules.encode(), check=True)
            self.applied = rules
            (INSIDE / "policies.nft").write_text(rules)  # for a person who debugs a denied connection

    async def provision(self) -> None:
        """Create volumes for pending claims; delete released ones."""
        for claim in volumes.pending_claims(self.follower.items("claims"), self.follower.items("volumes")):
            volume = volumes.volume_for(claim)
            Path(volume["spec"]["local"]["path"]).mkdir(parents=True, exist_ok=True)
            await self.request("POST", FOLLOWED["volumes"], volume, accept=409)
        for volume in volumes.released_volumes(self.follower.items("volumes")):
            shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
            await self.request("DELETE", f"{FOLLOWED['volumes']}/{volume['metadata']['name']}", accept=404)

    async def request(self, method: str, path: str, body: Object | None = None, *, accept: int) -> None:
        """Send one write. The status `accept` means that an earlier request has done it."""
        async with self.follower.session.request(method, path, json=body) as response:
            if response.status != accept:
                response.raise_for_status()


async def run(kubeconfig: Path) -> None:
    """Follow and act until a request fails, then exit; init.py restarts the agent."""
    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    context = ssl.create_default_context(cafile=str(INSIDE / "pki/ca.crt"))
    context.load_cert_chain(INSIDE / "pki/admin.crt", INSIDE / "pki/admin.key")
    connector = aiohttp.TCPConnector(ssl=context)
    no_timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(
        server, connector=connector, timeout=no_timeout, read_bufsize=2**24, raise_for_status=False
    ) as session:
        follower = Follower(session)
        agent = Agent(follower)
        async with asyncio.TaskGroup() as tasks:
            for kind in FOLLOWED:
                tasks.create_task(follower.follow(kind))
            tasks.create_task(follower.on_change(agent.act))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
