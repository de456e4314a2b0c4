"""What an operator costs the API server when there is nothing to do: the renewals of its Lease."""

from __future__ import annotations

import os
import time

from tests.cluster import training
from tests.kube_node.cluster import Cluster

SECONDS = float(os.environ.get("RSTAR2_IDLE_SECONDS", "60"))


def test_nothing_is_written_when_nothing_changes(operated: Cluster, namespace: str) -> None:
    operated.apply([training.job(operated, namespace, "smoke.yaml", suspend=True)])
    deadline = time.monotonic() + 60
    while training.phase(operated, namespace, "smoke") != "Suspended":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(15)  # longer than a change may be held back
    began = time.time()
    time.sleep(SECONDS)
    written = training.writes(operated, since=began)
    assert {what.split("/")[1] for _, what in written} == {"leases"}, written
    assert {verb for verb, _ in written} == {"update"}
