"""The baseline of bench/operator.py: a kopf operator that watches the same objects and does nothing with them.

`python -m bench.operator_noop PORT` serves the number of observed objects at http://127.0.0.1:PORT/.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import kopf
from aiohttp import web

from rstar2_operator import names
from rstar2_operator.client import KINDS
from rstar2_operator.informer import CHILDREN


async def _main(port: int) -> None:
    seen: set[str] = set()
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled, settings.scanning.disabled, settings.peering.standalone = False, True, True

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> Any:
        return kopf.login_with_kubeconfig(**kwargs)

    async def observe(body: Any, **_: Any) -> None:
        seen.add(body["metadata"]["uid"])

    for kind in ("AgenticRLJob", *CHILDREN):
        path, plural = KINDS[kind]
        group, _, version = path.removeprefix("apis/").removeprefix("api/").rpartition("/")
        kopf.on.event(group, version, plural, id=plural, registry=registry)(observe)
        if kind != "AgenticRLJob":
            settings.watching.label_selectors[group, version, plural] = names.SELECTOR

    async def count(_: web.Request) -> web.Response:
        return web.Response(text=str(len(seen)))

    app = web.Application()
    app.add_routes([web.get("/", count)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
