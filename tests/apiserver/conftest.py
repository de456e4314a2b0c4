"""Fixture of the tests on a real API server without a node: each test has a new server, so they run in parallel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube_node.fixtures import ensure_control_plane
from tests.support.kube_apiserver import KubeApiserver


@pytest.fixture
def api() -> Iterator[KubeApiserver]:
    """Provide an API server without nodes."""
    ensure_control_plane()
    with KubeApiserver() as server:
        yield server
