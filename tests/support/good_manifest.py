"""A valid manifest, and copies of it with one change: the base of `manifests.py` and of the manifests with faults."""

from __future__ import annotations

import copy
from typing import Any

Fault = tuple[str, object, str, str | None]
"""Path, value, message of the offline rules, message of the API server (None: it accepts the value)."""
GOOD: dict[str, Any] = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "a-job-with-a-name", "creationTimestamp": None},
    "spec": {
        "model": {"source": "pvc://models/base"},
        "trainer": {"resources": {"requests": {"cpu": 8, "memory": "64Gi"}}},
        "rollout": {"resources": {"requests": {"cpu": 2, "memory": "32Gi"}}},
        "validation": {"data": "/data/held.jsonl"},
        "grpo": {"promptsPerStep": 8, "updatesPerStep": 2, "objective": {"clipHigh": 0.3}},
        "stages": [
            {"name": "sft", "type": "SFT", "sft": {"data": "/data/d.jsonl"}},
            {"name": "rl", "type": "GRPO", "grpo": {"data": "/data/p.jsonl", "steps": 3}},
            {"name": "hard", "type": "Filter", "filter": {"data": "/data/p.jsonl"}},
            {"name": "rl-hard", "type": "GRPO", "grpo": {"dataFrom": "hard", "steps": 3}},
        ],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return GOOD with one value set at a dotted path (numbers index lists)."""
    data = copy.deepcopy(GOOD)
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    parent: Any = data
    for key in parents:
        parent = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[key]
    parent[last] = value
    return data


def evaluate(data: str) -> dict[str, Any]:
    """Return an Evaluate stage with one benchmark."""
    return {"name": "e", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": data}]}}


def in_bucket(**storage: Any) -> dict[str, Any]:
    """Return the spec of a job with a URL as its storage, which a cluster can run. `storage`: further fields."""
    return {**GOOD["spec"], "stages": GOOD["spec"]["stages"][:1], "storage": {"url": "s3://team/runs", **storage}}
