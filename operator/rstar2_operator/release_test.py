"""Runs a small job to its end: the pod of `helm test`. It needs no accelerator.

The job has the spec that the chart gives (files/test-job.yaml and the value `test.spec`). A job that succeeds is
deleted. One that does not stays, so that its pods, logs and conditions can be read.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import yaml
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.cache import JOB
from rstar2_operator.client import UNREACHABLE, Body, KubeClient, is_transient
from rstar2_operator.decide.decision import FINAL
from rstar2_operator.main import connected

POLL_SECONDS = 2.0
MANIFEST = "RSTAR2_TEST_MANIFEST"
"""Environment variable with the path of the manifest."""
TIMEOUT = "RSTAR2_TEST_SECONDS"
"""Environment variable with the time that the job has."""
EXIT_SECONDS = 120.0
"""Time for the deletion of an earlier or a successful job."""


async def run_job(client: KubeClient, job: Body, *, limit: float) -> bool:
    """Create the job, print each change of its state, and return whether it succeeds within `limit` seconds."""
    loop = asyncio.get_running_loop()
    await _delete(client, job)
    await client.create(job)
    where = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
    last, deadline = "", loop.time() + limit
    while loop.time() < deadline:
        status = await _status(client, job)
        line = _summary(status)
        if line != last:
            print(f"{where}: {line}", flush=True)
            last = line
        if (phase := status.get("phase")) in FINAL:
            if phase == "Succeeded":
                await _delete(client, job)
                return True
            break
        await asyncio.sleep(POLL_SECONDS)
    else:
        print(f"{where}: not finished after {limit:.0f} s", flush=True)
    for condition in (await _status(client, job)).get("conditions", ()):
        print(f"  {condition['type']}={condition['status']} {condition['reason']}: {condition.get('message', '')}")
    print(f"The job is left for you to look at: kubectl rstar2 status -n {where.replace('/', ' ')}", flush=True)
    return False


def _summary(status: Body) -> str:
    if not status:
        return "no status: does the operator run, and does it watch this namespace?"
    parts = [status.get("phase"), status.get("stage"), status.get("message")]
    return ", ".join(str(part) for part in parts if part)


async def _status(client: KubeClient, job: Body) -> Body:
    """Return the status of the job; empty if the API server cannot serve the request now."""
    try:
        current = await client.find(JOB, job["metadata"]["namespace"], job["metadata"]["name"])
    except (ApiException, *UNREACHABLE) as error:
        if not is_transient(error):
            raise
        return {}
    status: Body = (current or {}).get("status") or {}
    return status


async def _delete(client: KubeClient, job: Body) -> None:
    """Delete the job and wait until the operator has released it. Raises TimeoutError."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    async with asyncio.timeout(EXIT_SECONDS):
        while (current := await client.find(JOB, namespace, name)) is not None:
            if not current["metadata"].get("deletionTimestamp"):
                await client.delete(JOB, namespace, name, uid=current["metadata"]["uid"])
            await asyncio.sleep(POLL_SECONDS)


async def _main(job: Body) -> int:
    async with await connected() as api:
        return 0 if await run_job(KubeClient(api), job, limit=float(os.environ[TIMEOUT])) else 1


if __name__ == "__main__":
    manifest = yaml.safe_load(Path(os.environ[MANIFEST]).read_text(encoding="utf-8"))
    sys.exit(asyncio.run(_main(manifest)))
