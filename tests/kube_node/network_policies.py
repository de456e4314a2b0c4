"""Translates NetworkPolicies of a one-node cluster to an nftables ruleset. Pure; agent.py applies it.

Every pod has its own veth and is routed. Traffic between pods crosses the `forward` hook after kube-proxy has chosen
the endpoint, so both addresses are pod addresses. Traffic from a pod to the node (the API server) crosses `input`.
Traffic from the node to its pods (probes, port-forward) is always allowed, as Kubernetes requires. Ports are compared
after the Service's translation, as in most network plugins.

A pod that a policy selects for a direction gets a chain for it: one `return` per allowed peer and port, then `drop`. A
connection must pass the sender's egress chain and the receiver's ingress chain.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
TABLE = "rstar2-policies"
TERMINAL_PHASES = ("Succeeded", "Failed")


def matches(selector: Object | None, labels: dict[str, str]) -> bool:
    """Return whether a label selector matches the labels; an empty one matches all, None matches none."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_holds(item, labels) for item in selector.get("matchExpressions") or [])


def expression_holds(expression: Object, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) == (operator == "Exists")


def labels_of(item: Object) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def pods_with_address(pods: list[Object]) -> list[Object]:
    """Return the running pods that have their own address."""
    return [
        pod
        for pod in pods
        if pod.get("status", {}).get("podIP")
        and not pod["spec"].get("hostNetwork")
        and pod["status"].get("phase") not in TERMINAL_PHASES
    ]


def ip_of(pod: Object) -> str:
    return pod["status"]["podIP"]


def peers(peer: Object, namespace: str, pods: list[Object], namespaces: dict[str, dict[str, str]]) -> list[Object]:
    """Return the pods that a `from` or `to` entry without ipBlock selects."""
    spaces = {namespace}
    if peer.get("namespaceSelector") is not None:
        spaces = {name for name, labels in namespaces.items() if matches(peer["namespaceSelector"], labels)}
    selector = peer.get("podSelector", {})
    return [pod for pod in pods if pod["metadata"]["namespace"] in spaces and matches(selector or {}, labels_of(pod))]


def port_matches(ports: list[Object], receivers: list[Object]) -> list[str]:
    """Return nftables matches for a list of ports; port names are looked up in the receiving pods."""
    if not ports:
        return [""]
    matchers = []
    for port in ports:
        protocol, number = port.get("protocol", "TCP").lower(), port.get("port")
        if number is None:
            matchers.append(f"meta l4proto {protocol} ")
        elif isinstance(number, int):
            last = f"-{port['endPort']}" if port.get("endPort") else ""
            matchers.append(f"{protocol} dport {number}{last} ")
        else:
            for pod in receivers:
                for container in pod["spec"]["containers"]:
                    for named in container.get("ports") or []:
                        if named.get("name") == number and named.get("protocol", "TCP").lower() == protocol:
                            matchers.append(f"ip daddr {ip_of(pod)} {protocol} dport {named['containerPort']} ")
    return matchers


def address_matches(side: str, entry: list[Object], namespace: str, targets: PolicyTargets) -> list[str]:
    """Return nftables matches for the peers of one rule; `side` is saddr (ingress) or daddr (egress)."""
    if not entry:
        return [""]
    matchers = []
    for peer in entry:
        block = peer.get("ipBlock")
        if block:
            excepted = "".join(f"ip {side} != {inner} " for inner in block.get("except") or [])
            matchers.append(f"ip {side} {block['cidr']} {excepted}" if ":" not in block["cidr"] else "")
        else:
            chosen = sorted({ip_of(pod) for pod in peers(peer, namespace, targets.pods, targets.namespaces)})
            if chosen:
                matchers.append(f"ip {side} {{ {', '.join(chosen)} }} ")
    return [matcher for matcher in matchers if matcher]


class PolicyTargets:
    """The pods and namespaces to which policies apply."""

    def __init__(self, pods: list[Object], namespaces: list[Object]) -> None:
        self.pods = pods_with_address(pods)
        self.namespaces = {item["metadata"]["name"]: labels_of(item) for item in namespaces}


def types_of(policy: Object) -> list[str]:
    """Return the directions that a policy isolates; the default depends on its egress rules."""
    spec = policy["spec"]
    return spec.get("policyTypes") or (["Ingress", "Egress"] if "egress" in spec else ["Ingress"])


def allow_rules(policy: Object, direction: str, pod: Object, targets: PolicyTargets) -> list[str]:
    """Return the rules of one policy for one pod that it selects."""
    namespace = policy["metadata"]["namespace"]
    entry_key, side = ("from", "saddr") if direction == "Ingress" else ("to", "daddr")
    lines = []
    for rule in policy["spec"].get(direction.lower()) or []:
        receivers = [pod] if direction == "Ingress" else targets.pods
        addresses = address_matches(side, rule.get(entry_key) or [], namespace, targets)
        for port in port_matches(rule.get("ports") or [], receivers):
            lines += [f"{address}{port}return" for address in addresses]
    return lines


def chains(policies: list[Object], direction: str, targets: PolicyTargets) -> dict[str, list[str]]:
    """Return pod address -> rules of its chain, for each pod that is isolated in this direction."""
    rules: dict[str, list[str]] = {}
    for pod in targets.pods:
        for policy in policies:
            same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            chosen = same and matches(policy["spec"].get("podSelector") or {}, labels_of(pod))
            if chosen and direction in types_of(policy):
                rules.setdefault(ip_of(pod), []).extend(allow_rules(policy, direction, pod, targets))
    return rules


def ruleset(policies: list[Object], pods: list[Object], namespaces: list[Object]) -> str:
    """Return the whole table for `nft -f`, which replaces it in one transaction."""
    targets = PolicyTargets(pods, namespaces)
    body, jumps = [], {}
    for direction, side in (("Egress", "saddr"), ("Ingress", "daddr")):
        table = chains(policies, direction, targets)
        names = {address: f"{direction.lower()}-{address.replace('.', '-')}" for address in sorted(table)}
        for address, name in names.items():
            rules = "".join(f"    {rule}\n" for rule in dict.fromkeys(table[address]))
            body.append(f"  chain {name} {{\n{rules}    drop\n  }}\n")
        entries = ", ".join(f"{address} : jump {name}" for address, name in names.items())
        jumps[direction] = f"    ip {side} vmap {{ {entries} }}\n" if entries else ""
    established = "    ct state established,related accept\n"
    hooks = (
        "  chain forward {\n    type filter hook forward priority 0;\n"
        f"{established}{jumps['Egress']}{jumps['Ingress']}  }}\n"
        f"  chain input {{\n    type filter hook input priority 0;\n{established}{jumps['Egress']}  }}\n"
    )
    return f"table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{''.join(body)}{hooks}}}\n"
