"""NetworkPolicies turned into nftables rules: whom a rule names, which ports, and who is isolated at all.

The text is judged by what it allows (`allowed` reads the chains back); that the kernel takes it, and that packets obey
it, is seen on a real cluster in tests/cluster/test_node_network.py.
"""

from __future__ import annotations

import pytest

from tests.kube_node import network_policies

SPACES = [
    {"metadata": {"name": "a", "labels": {"team": "red"}}},
    {"metadata": {"name": "b", "labels": {"team": "blue"}}},
]


def pod(ip: str, namespace: str = "a", ports: list[dict] | None = None, **labels: str) -> dict:
    return {
        "metadata": {"name": f"p-{ip}", "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"ports": ports or []}]},
        "status": {"podIP": ip, "phase": "Running"},
    }


WORLD = [
    pod("10.0.0.1", role="client"),
    pod("10.0.0.2", role="server", ports=[{"name": "http", "containerPort": 8080}]),
    pod("10.0.0.3", namespace="b", role="client"),
]


def policy(selector: dict, namespace: str = "a", **spec: object) -> dict:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": selector, **spec}}


def chain(name: str, *rules: dict, pods: list[dict] = WORLD) -> list[str] | None:
    """The rules of a chain; None when the pod is not isolated in that direction."""
    lines = [line.strip() for line in network_policies.ruleset(list(rules), pods, SPACES).splitlines()]
    if f"chain {name} {{" not in lines:
        return None
    start = lines.index(f"chain {name} {{") + 1
    return lines[start : lines.index("}", start)]


SERVER = {"matchLabels": {"role": "server"}}


def test_without_policies_nothing_is_isolated() -> None:
    text = network_policies.ruleset([], WORLD, SPACES)
    assert "vmap" not in text and "drop" not in text


def test_an_empty_rule_list_denies_and_a_missing_direction_does_not() -> None:
    denied = policy(SERVER, policyTypes=["Ingress"])
    assert chain("ingress-10-0-0-2", denied) == ["drop"]
    assert chain("egress-10-0-0-2", denied) is None
    assert chain("ingress-10-0-0-1", denied) is None


def test_both_directions_are_isolated_by_default_once_there_is_an_egress_rule() -> None:
    both = policy(SERVER, egress=[{}])
    assert chain("ingress-10-0-0-2", both) == ["drop"]
    assert chain("egress-10-0-0-2", both) == ["return", "drop"]


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ({"podSelector": {"matchLabels": {"role": "client"}}}, "10.0.0.1"),
        ({"podSelector": {}}, "10.0.0.1, 10.0.0.2"),
        ({"namespaceSelector": {"matchLabels": {"team": "blue"}}}, "10.0.0.3"),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "client"}}}, "10.0.0.1, 10.0.0.3"),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]}},
            "10.0.0.3",
        ),
        ({"podSelector": {"matchExpressions": [{"key": "role", "operator": "Exists"}]}}, "10.0.0.1, 10.0.0.2"),
    ],
)
def test_peers_by_labels(peer: dict, expected: str) -> None:
    rule = policy(SERVER, ingress=[{"from": [peer]}])
    assert chain("ingress-10-0-0-2", rule) == [f"ip saddr {{ {expected} }} return", "drop"]


def test_a_peer_that_matches_nobody_allows_nobody() -> None:
    rule = policy(SERVER, ingress=[{"from": [{"podSelector": {"matchLabels": {"role": "none"}}}]}])
    assert chain("ingress-10-0-0-2", rule) == ["drop"]


def test_blocks_ports_ranges_and_names() -> None:
    block = {"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.1.0/24"]}}
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 100, "endPort": 200}, {"port": "http"}, {"protocol": "SCTP"}]
    rules = chain("ingress-10-0-0-2", policy(SERVER, ingress=[{"from": [block], "ports": ports}]))
    source = "ip saddr 10.9.0.0/16 ip saddr != 10.9.1.0/24"
    assert rules == [
        f"{source} udp dport 53 return",
        f"{source} tcp dport 100-200 return",
        f"{source} ip daddr 10.0.0.2 tcp dport 8080 return",
        f"{source} meta l4proto sctp return",
        "drop",
    ]


def test_a_named_port_of_an_egress_rule_is_the_receivers() -> None:
    rule = policy({"matchLabels": {"role": "client"}}, policyTypes=["Egress"], egress=[{"ports": [{"port": "http"}]}])
    assert chain("egress-10-0-0-1", rule) == ["ip daddr 10.0.0.2 tcp dport 8080 return", "drop"]


def test_policies_add_up_and_stay_in_their_namespace() -> None:
    client = policy({"matchLabels": {"role": "client"}}, policyTypes=["Ingress"])
    one = policy(SERVER, ingress=[{"ports": [{"port": 1}]}])
    two = policy(SERVER, ingress=[{"ports": [{"port": 2}]}])
    assert chain("ingress-10-0-0-2", one, two, client) == ["tcp dport 1 return", "tcp dport 2 return", "drop"]
    assert chain("ingress-10-0-0-3", client) is None


def test_pods_that_ended_or_use_the_nodes_network_are_left_out() -> None:
    ended = {**pod("10.0.0.8", role="server"), "status": {"podIP": "10.0.0.8", "phase": "Succeeded"}}
    on_node = {**pod("10.0.0.9", role="server"), "spec": {"hostNetwork": True, "containers": []}}
    text = network_policies.ruleset([policy(SERVER, policyTypes=["Ingress"])], [*WORLD, ended, on_node], SPACES)
    assert "10.0.0.8" not in text and "10.0.0.9" not in text and "10.0.0.2" in text
