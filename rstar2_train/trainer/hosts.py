"""The order of ranks over hosts, and the files of each. Pure.

Ranks of one host are neighbours, so that a mesh [hosts, ranks of a host] has the shards of a copy within one host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def order_by_host(hosts: Sequence[str]) -> list[int]:
    """Return the indices of the processes in the order of their ranks: by host, in the order of first appearance."""
    first = {host: index for index, host in reversed(list(enumerate(hosts)))}
    return sorted(range(len(hosts)), key=lambda index: (first[hosts[index]], index))


def ranks_per_host(hosts: Sequence[str]) -> int | None:
    """Return the number of ranks on each host, or None if the hosts have different numbers."""
    counts = set(Counter(hosts).values())
    return counts.pop() if len(counts) == 1 else None


def shares(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Return files in `count` parts of about the same number of bytes. `sizes`: bytes by name."""
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    return [order[part::count] for part in range(count)]
