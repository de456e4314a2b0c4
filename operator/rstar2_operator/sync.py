"""Waits until the watches have told everything that is there, before anything is decided.

A job of which only a part has been seen would be taken for one that lacks the rest: what it runs on would be deleted as
left over, and made again. kopf does not say when its first listings are complete; so the API server is asked for the
names, again until the store has been told of every one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rstar2_operator import names
from rstar2_operator.client import Client
from rstar2_operator.store import Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.3
JOB = "AgenticRLJob"


async def synced(client: Client, store: Store, *, kinds: Iterable[str], namespaces: Iterable[str]) -> None:
    """Return when every job and child that exists has been told to the store.

    `kinds`: of the children; `namespaces`: those that are watched, none for all.
    """
    everywhere = tuple(namespaces) or ("",)
    known = 0
    for kind in (JOB, *kinds):
        for namespace in everywhere:
            selector = "" if kind == JOB else names.SELECTOR
            while True:
                there = await client.list_names(kind, namespace, selector=selector)
                if all(store.was_told(kind, *one) for one in there):
                    break
                await asyncio.sleep(LOOK_SECONDS)
            known += len(there)
    store.forget_told()
    log.info("the watches have told all that is there: %d objects", known)
