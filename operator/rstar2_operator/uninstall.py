"""Deletes every job before `helm uninstall` removes the definition of AgenticRLJob: the hook of crds.keep=false.

The operator still runs during the hook, and deletes the objects of each job in order. A job that takes too long loses
its finalizer, so that neither the hook nor the deletion of the definition waits indefinitely.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.apply import set_finalizer
from rstar2_operator.cache import JOB
from rstar2_operator.client import Body, KubeClient
from rstar2_operator.logs import configure_logging
from rstar2_operator.main import connected
from rstar2_operator.settings import OperatorSettings

log = logging.getLogger("rstar2_operator")

LIMIT_SECONDS = 240.0
"""Maximum time for the pods of all jobs; helm waits 300 s for a hook."""
POLL_SECONDS = 1.0


async def delete_all(client: KubeClient, namespaces: tuple[str, ...], *, limit: float = LIMIT_SECONDS) -> None:
    """Delete the jobs of the namespaces (empty: of all) and wait until they are gone, at most `limit` seconds.

    Jobs of other controllers (spec.managedBy) are among them: the definition of AgenticRLJob is deleted next.
    """
    jobs = await _jobs(client, namespaces)
    log.info("deleting %d jobs", len(jobs))
    for meta in jobs:
        try:
            await client.delete(JOB, meta["namespace"], meta["name"], uid=meta["uid"])
        except ApiException as error:
            if error.status not in (404, 409):
                raise
    deadline = asyncio.get_running_loop().time() + limit
    while remaining := await _jobs(client, namespaces):
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    for meta in remaining:
        log.warning("%s/%s is not gone after %.0f s: removing its finalizer", meta["namespace"], meta["name"], limit)
        await set_finalizer(client, {"metadata": meta}, present=False)


async def _jobs(client: KubeClient, namespaces: tuple[str, ...]) -> list[Body]:
    lists = [await client.list_metadata(JOB, namespace, selector="") for namespace in namespaces or ("",)]
    return [meta for listed in lists for meta in listed]


async def _main() -> None:
    settings = OperatorSettings.from_env(os.environ)
    configure_logging(settings.log_format)
    async with await connected() as api:
        await delete_all(KubeClient(api), settings.watch_namespaces)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
