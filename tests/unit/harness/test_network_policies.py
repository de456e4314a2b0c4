"""NetworkPolicies as nftables rules: selected peers, ports, and the pods that are isolated.

`chain` reads the rules of the generated text. tests/cluster/test_node_network.py tests them with real packets.
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


PODS = [
    pod("10.0.0.1", role="client"),
    pod("10.0.0.2", role="server", ports=[{"name": "http", "containerPort": 8080}]),
    pod("10.0.0.3", namespace="b", role="client"),
]


def policy(selector: dict, namespace: str = "a", **spec: object) -> dict:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": {"podSelector": selector, **spec}}


def chain(name: str, *rules: dict, pods: list[dict] = PODS) -> list[str] | None:
    """Return the rules of a chain; None if the pod is not isolated in that direction."""
    lines = [line.strip() for line in network_policies.ruleset(list(rules), pods, SPACES).splitlines()]
    if f"chain {name} {{" not in lines:
        return None
    start = lines.index(f"chain {name} {{") + 1
    return lines[start : lines.index("}", start)]


SERVER = {"matchLabels": {"role": "server"}}


def test_ruleset_without_policies_isolates_no_pod() -> None:
    """Without policies there is no jump and no drop."""
    text = network_policies.ruleset([], PODS, SPACES)
    assert "vmap" not in text and "drop" not in text


def test_ruleset_empty_rules_deny_their_direction_only() -> None:
    """An empty list of rules denies a direction; a direction that the policy omits stays open."""
    denied = policy(SERVER, policyTypes=["Ingress"])
    assert chain("ingress-10-0-0-2", denied) == ["drop"]
    assert chain("egress-10-0-0-2", denied) is None
    assert chain("ingress-10-0-0-1", denied) is None


def test_ruleset_egress_rule_isolates_both_directions() -> None:
    """Without policyTypes, a policy with egress rules isolates ingress and egress."""
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
def test_ruleset_peers_follow_label_selectors(peer: dict, expected: str) -> None:
    """Pod and namespace selectors become the addresses of the matching pods."""
    rule = policy(SERVER, ingress=[{"from": [peer]}])
    assert chain("ingress-10-0-0-2", rule) == [f"ip saddr {{ {expected} }} return", "drop"]


def test_ruleset_peer_without_match_allows_no_pod() -> None:
    """A selector that matches no pod adds no rule."""
    rule = policy(SERVER, ingress=[{"from": [{"podSelector": {"matchLabels": {"role": "none"}}}]}])
    assert chain("ingress-10-0-0-2", rule) == ["drop"]


def test_ruleset_translates_blocks_and_ports() -> None:
    """CIDR blocks with exceptions, port ranges, named ports and protocols become matches."""
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


def test_ruleset_egress_port_name_is_of_receiver() -> None:
    """The port name of an egress rule is looked up in the receiving pod."""
    rule = policy({"matchLabels": {"role": "client"}}, policyTypes=["Egress"], egress=[{"ports": [{"port": "http"}]}])
    assert chain("egress-10-0-0-1", rule) == ["ip daddr 10.0.0.2 tcp dport 8080 return", "drop"]


def test_ruleset_policies_add_up_within_namespace() -> None:
    """Rules of several policies for a pod are combined; other namespaces are unaffected."""
    client = policy({"matchLabels": {"role": "client"}}, policyTypes=["Ingress"])
    first = policy(SERVER, ingress=[{"ports": [{"port": 1}]}])
    second = policy(SERVER, ingress=[{"ports": [{"port": 2}]}])
    assert chain("ingress-10-0-0-2", first, second, client) == ["tcp dport 1 return", "tcp dport 2 return", "drop"]
    assert chain("ingress-10-0-0-3", client) is None


def test_ruleset_excludes_finished_and_host_network_pods() -> None:
    """A finished pod and a pod on the network of the node have no chain."""
    finished = {**pod("10.0.0.8", role="server"), "status": {"podIP": "10.0.0.8", "phase": "Succeeded"}}
    on_node = {**pod("10.0.0.9", role="server"), "spec": {"hostNetwork": True, "containers": []}}
    text = network_policies.ruleset([policy(SERVER, policyTypes=["Ingress"])], [*PODS, finished, on_node], SPACES)
    assert "10.0.0.8" not in text and "10.0.0.9" not in text and "10.0.0.2" in text
