"""Pods found by the name of their Service."""

from __future__ import annotations

import pytest

from rstar2_train.utils.dns import addresses, join_address, split_address


async def test_every_address_behind_a_name_is_found() -> None:
    assert "127.0.0.1:8000" in (await addresses("localhost:8000") or ())
    assert await addresses("127.0.0.7:81") == {"127.0.0.7:81"}
    assert await addresses("[::1]:81") == {"[::1]:81"}


async def test_a_name_that_nobody_has_means_none_or_not_known() -> None:
    """Which of the two depends on whether this machine has a name server to ask."""
    assert await addresses("no-such-host.invalid:8000") in (frozenset(), None)


@pytest.mark.parametrize("service", ["", "host", "host:", ":80", "host:http", "[]:80"])
def test_a_service_is_a_name_and_a_port(service: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(service)


@pytest.mark.parametrize("address", [("10.0.0.1", 80), ("fd00::1", 8000), ("host", 1)])
def test_joined_and_split(address: tuple[str, int]) -> None:
    assert split_address(join_address(*address)) == address
