"""Engines found by name."""

from __future__ import annotations

import pytest

from rstar2_train.rollout.discovery import find_engines, split_service


async def test_every_address_behind_a_name_is_an_engine() -> None:
    assert "http://127.0.0.1:8000" in (await find_engines("localhost:8000") or ())
    assert await find_engines("127.0.0.7:81") == {"http://127.0.0.7:81"}
    assert await find_engines("::1:81") == {"http://[::1]:81"}


async def test_a_name_that_nobody_has_means_no_engine_or_not_known() -> None:
    """Which of the two depends on whether this machine has a name server to ask."""
    assert await find_engines("no-such-host.invalid:8000") in (frozenset(), None)


@pytest.mark.parametrize("service", ["", "host", "host:", ":80", "host:http"])
def test_a_service_is_a_name_and_a_port(service: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_service(service)
