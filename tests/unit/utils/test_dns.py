"""Addresses behind the name of a Service."""

from __future__ import annotations

import pytest

from rstar2_train.utils.dns import join_address, resolve_addresses, split_address


async def test_resolve_addresses_returns_every_address() -> None:
    """Names, IPv4 and IPv6 addresses, with the port of the service."""
    assert "127.0.0.1:8000" in (await resolve_addresses("localhost:8000") or ())
    assert await resolve_addresses("127.0.0.7:81") == {"127.0.0.7:81"}
    assert await resolve_addresses("[::1]:81") == {"[::1]:81"}


async def test_resolve_addresses_unknown_name() -> None:
    """No address, or None if this machine has no name server."""
    assert await resolve_addresses("no-such-host.invalid:8000") in (frozenset(), None)


@pytest.mark.parametrize("service", ["", "host", "host:", ":80", "host:http", "[]:80"])
def test_split_address_without_name_or_port_fails(service: str) -> None:
    """The message has the expected form."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(service)


@pytest.mark.parametrize("address", [("10.0.0.1", 80), ("fd00::1", 8000), ("host", 1)])
def test_split_address_reverses_join_address(address: tuple[str, int]) -> None:
    """IPv6 addresses have brackets."""
    assert split_address(join_address(*address)) == address
