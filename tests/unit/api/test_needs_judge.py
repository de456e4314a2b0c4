"""Which jobs need the judge, its executors and Redis."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_train.api.validation import check
from tests.support.simulated_cluster import manifest

AGENT = {"command": ["agent"], "image": "agents:1"}
ENVIRONMENT = {"name": "game", "image": "games:1"}
SERVERS = {"mcpServers": [{"name": "shop", "url": "http://shop:8000/mcp"}]}
REMOTE, FUNCTION = {"name": "find", "server": "shop"}, {"name": "find", "source": "/tools/find.py"}


def reward(kind: str, **more: Any) -> dict[str, Any]:
    return {"name": kind.lower(), "type": kind, **more}


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ({}, True),
        ({"agent": AGENT}, False),
        ({"agent": AGENT, "judge": {"packages": ["scipy"]}}, False),
        ({"environments": [ENVIRONMENT]}, False),
        ({"environments": [ENVIRONMENT], "tools": [FUNCTION]}, True),
        ({"environments": [ENVIRONMENT], "tools": [REMOTE], **SERVERS}, False),
        ({"environments": [ENVIRONMENT], "rewards": [reward("Choice")]}, False),
        ({"environments": [ENVIRONMENT], "rewards": [reward("Choice"), reward("Math")]}, True),
        ({"tools": [REMOTE], **SERVERS}, True),
        ({"tools": [REMOTE], "rewards": [reward("Exact"), reward("Numeric")], **SERVERS}, False),
        ({"tools": [REMOTE], "rewards": [reward("Exact"), reward("Tests")], **SERVERS}, True),
        ({"tools": [REMOTE], "rewards": [reward("Program", source="/checker.py")], **SERVERS}, True),
        ({"tools": [REMOTE, {**FUNCTION, "name": "run"}], "rewards": [reward("Exact")], **SERVERS}, True),
        ({"rewards": [reward("Exact")]}, True),
    ],
)
def test_needs_judge_follows_from_tools_and_rewards(spec: dict[str, Any], needed: bool) -> None:
    """The judge runs tools without a server, and rewards that run a program; a job without tools has a built-in one."""
    job, issues = check(manifest("g", **spec))
    assert job is not None, issues
    assert job.spec.needs_judge is needed
