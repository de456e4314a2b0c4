"""The network of the node: names, Services, and NetworkPolicies that deny and allow, from both runtimes."""

from __future__ import annotations

import pytest

from tests.kube_node.cluster import Cluster
from tests.kube_node.layout import DOMAIN, HOST_NAME
from tests.kube_node.namespaces import wait_for
from tests.kube_node.pods import pod, service

SERVE = ("python3", "-m", "http.server", "8080", "--directory", "/tmp")
PORT = 8080


def reaches(cluster: Cluster, namespace: str, source: str, host: str, port: int = PORT) -> bool:
    """Return whether a pod opens a TCP connection within two seconds after its lookup, which may take eight."""
    command = ("timeout", "10", "nc", "-z", "-w", "2", host, str(port))  # without DNS the lookup alone takes 20 s
    return cluster.exec(namespace, source, *command, check=False).returncode == 0


def policy(namespace: str, name: str, **spec: object) -> dict:
    kind = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.fixture
def served(cluster: Cluster, namespace: str) -> str:
    """Provide a namespace with a server behind a Service and a headless one, and a client on each runtime."""
    labels = {"role": "server"}
    server = pod(namespace, "server", *SERVE, labels=labels, hostname="server", subdomain="each")
    server["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    cluster.apply(
        [
            server,
            pod(namespace, "client", labels={"role": "client"}),
            pod(namespace, "sandboxed", labels={"role": "sandboxed"}, runtimeClassName="gvisor"),
            service(namespace, "web", labels, PORT),
            service(namespace, "each", labels, PORT, headless=True),
        ]
    )
    for name in ("server", "client", "sandboxed"):
        cluster.wait(namespace, f"pod/{name}", "condition=Ready")
    return namespace


@pytest.mark.parametrize("client", ["client", "sandboxed"])
def test_node_dns_resolves_services_and_pods(cluster: Cluster, served: str, client: str) -> None:
    """Services, headless Services, pod names and this machine resolve; names of the internet do not."""
    for host in ("web", f"web.{served}", f"web.{served}.svc.{DOMAIN}", "each", "server.each"):
        wait_for(f"{host} from {client}", lambda host=host: reaches(cluster, served, client, host), 180)  # type: ignore[misc]
    if cluster.layout:
        lookup = cluster.exec(served, client, "getent", "hosts", HOST_NAME)
        assert lookup.stdout.split()[0] == cluster.layout.host_address
    script = "import socket; print(socket.getaddrinfo('nowhere.example', 80))"

    def is_unknown() -> bool:
        return "Name or service not known" in cluster.exec(served, client, "python3", "-c", script, check=False).stderr

    wait_for("the answer that a name is unknown", is_unknown, 180)


def test_node_policies_deny_then_allow_ingress(cluster: Cluster, served: str) -> None:
    """One policy denies all ingress, a second one allows one client; probes always pass."""
    selector = {"podSelector": {"matchLabels": {"role": "server"}}}
    wait_for("the server", lambda: reaches(cluster, served, "client", "web"), 180)
    cluster.apply([policy(served, "deny", **selector, policyTypes=["Ingress"])])
    wait_for("the denial", lambda: not reaches(cluster, served, "client", "web"), 180)
    assert not reaches(cluster, served, "sandboxed", "server.each")
    allowed = [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}], "ports": [{"port": PORT}]}]
    cluster.apply([policy(served, "allow", **selector, policyTypes=["Ingress"], ingress=allowed)])
    wait_for("the permission", lambda: reaches(cluster, served, "client", "web"), 180)
    assert not reaches(cluster, served, "sandboxed", "web")

    def is_ready() -> bool:
        return bool(cluster.get("pod", "-n", served, "server")["status"]["containerStatuses"][0]["ready"])

    wait_for("success of the probe, which no policy denies", is_ready, 180)


def test_node_policy_without_egress_blocks_everything(cluster: Cluster, served: str) -> None:
    """A pod without egress reaches no pod, no Service and not the API server."""
    node = cluster.get("node")["items"][0]["status"]["addresses"][0]["address"]
    wait_for("the API server", lambda: reaches(cluster, served, "sandboxed", "kubernetes.default", 443), 180)
    selector = {"podSelector": {"matchLabels": {"role": "sandboxed"}}}
    cluster.apply([policy(served, "sealed", **selector, policyTypes=["Egress"], egress=[])])
    wait_for("the denial", lambda: not reaches(cluster, served, "sandboxed", node, 6443), 180)
    address = cluster.get("pod", "-n", served, "server")["status"]["podIP"]
    assert not reaches(cluster, served, "sandboxed", address)
    assert not reaches(cluster, served, "sandboxed", "web")
    wait_for("the server", lambda: reaches(cluster, served, "client", address), 180)


def test_node_policy_can_allow_only_dns(cluster: Cluster, served: str) -> None:
    """With egress to DNS only, a name resolves and a connection is denied."""
    dns = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    rule = {"to": [dns], "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}
    selector = {"podSelector": {"matchLabels": {"role": "client"}}}
    cluster.apply([policy(served, "dns", **selector, policyTypes=["Egress"], egress=[rule])])
    wait_for("the denial", lambda: not reaches(cluster, served, "client", "web"), 180)
    address = cluster.get("service", "-n", served, "web")["spec"]["clusterIP"]

    def resolves() -> bool:
        return cluster.exec(served, "client", "getent", "hosts", "web", check=False).stdout.split()[:1] == [address]

    wait_for("the answer of DNS", resolves, 180)
