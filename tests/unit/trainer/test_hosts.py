"""The order of ranks over hosts."""

from __future__ import annotations

from rstar2_train.trainer.hosts import order_by_host, ranks_per_host


def test_order_by_host_joins_the_ranks_of_a_host() -> None:
    """Ranks of one host become neighbours; the first process stays rank 0."""
    assert order_by_host(["b", "a", "b", "a"]) == [0, 2, 1, 3]
    assert order_by_host(["a", "a", "b"]) == [0, 1, 2]


def test_ranks_per_host_of_unequal_hosts_is_none() -> None:
    """A mesh needs the same number of ranks on each host."""
    assert ranks_per_host(["a", "b", "a", "b"]) == 2
    assert ranks_per_host(["a", "b", "a"]) is None
