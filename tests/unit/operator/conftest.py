"""Rules for the unit tests of operators: their time is virtual."""

from __future__ import annotations

import pytest

from tests.support.fake_kube_api import Operator


@pytest.fixture(autouse=True)
def time_of_operators(request: pytest.FixtureRequest) -> None:
    """Use `virtual_time` in all modules with an Operator."""
    if getattr(request.module, "Operator", None) is Operator:
        request.getfixturevalue("virtual_time")
