"""Boots and removes a cluster: machine -> binaries -> images -> namespaces -> control plane -> node -> add-ons.

A boot that fails removes the parts that it created; its message contains the end of the log that explains the failure.
`down` works in every state: the cluster runs, its boot was killed, or the machine was restarted.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from string import Template

from scripts.setup import CACHE, echo, exclusive
from tests.kube_node import binaries, certificates, components, images, namespaces, requirements
from tests.kube_node.cluster import Cluster, read_layout
from tests.kube_node.layout import CLUSTERS, DNS_SERVICE, DOMAIN, HOST_NAME, NODE, SUBNETS, Layout, default_name
from tests.kube_node.requirements import ClusterUnavailable

BOOT_SECONDS = 300.0
"""Limit of each wait; generous, for a busy machine."""
MAX_STARTS = 15
"""Of one service. A few services exit once or twice before the one that they need is ready."""
LOG_LINES = 15


def prepare() -> dict[str, Path]:
    """Build every binary and image that the cache does not have; return the archives to load."""
    requirements.check()
    binaries.ensure_all()
    return {name: images.archive(name) for name in images.BUILDERS}


def up(name: str | None = None) -> Cluster:
    """Boot a cluster, or return the running one of this name."""
    archives = prepare()
    name = name or default_name()
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise ClusterUnavailable(f"Invalid cluster name {name!r}: use a-z, 0-9 and '-', at most 31 characters.")
    CLUSTERS.mkdir(parents=True, exist_ok=True)
    with exclusive(CACHE / "cluster-boot.lock", "booting a cluster"):
        existing = read_layout(name)
        if existing and namespaces.init_pid(existing):
            return Cluster(existing.kubeconfig, existing)
        down(name)
        start = time.monotonic()
        layout = reserve(name)
        try:
            cluster = boot(layout, archives)
        except BaseException:
            down(name)
            raise
    echo(f"cluster {name}: node, DNS and images ready after {time.monotonic() - start:.0f} s")
    return cluster


def reserve(name: str) -> Layout:
    """Reserve a free subnet and write the cluster's folder."""
    with exclusive(CACHE / "clusters.lock", "choosing a subnet"):
        records = [json.loads(path.read_text())["subnet"] for path in CLUSTERS.glob("*/cluster.json")]
        layout = Layout(name, namespaces.free_subnet({*records, *namespaces.taken_subnets()}, SUBNETS))
        layout.folder.mkdir(mode=0o711)
        layout.record.write_text(json.dumps({"subnet": layout.subnet}))
    for file, content in components.files(layout).items():
        (layout.folder / file).parent.mkdir(exist_ok=True)
        (layout.folder / file).write_text(content)
    (layout.folder / "services.json").write_text("{}")
    certificates.write_all(layout)
    return layout


def boot(layout: Layout, archives: dict[str, Path]) -> Cluster:
    """Start everything in a reserved folder; return when the node is Ready and DNS serves."""
    namespaces.create(layout)
    cluster = Cluster(layout.kubeconfig, layout)
    cluster.run_on_node("nft", "-f", str(components.INSIDE / "nat.nft"))
    all_services = components.services(layout)
    cluster.write_services({name: all_services[name] for name in components.CONTROL_PLANE})

    def containerd_ready() -> bool:
        return cluster.run_on_node("ctr", "version", check=False).returncode == 0

    wait(layout, "containerd", "containerd", containerd_ready)
    for archive in archives.values():
        cluster.load_image(archive)
    wait(layout, "the API server", "kube-apiserver", lambda: kubectl_prints(cluster, "ok", "get", "--raw=/readyz"))
    cluster.write_services(all_services)
    cluster.apply(system_objects(layout))
    account = ("get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
    wait(layout, "service accounts", "kube-controller-manager", lambda: kubectl_prints(cluster, "default", *account))
    status = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    wait(layout, "the node", "kubelet", lambda: kubectl_prints(cluster, "True", "get", "node", NODE, "-o", status))
    ready = "jsonpath={.status.readyReplicas}"
    dns = ("get", "deployment", "coredns", "-n", "kube-system", "-o", ready)
    wait(layout, "DNS (CoreDNS in kube-system)", "kubelet", lambda: kubectl_prints(cluster, "1", *dns))
    return cluster


def kubectl_prints(cluster: Cluster, expected: str, *arguments: str) -> bool:
    return cluster.run("kubectl", *arguments, check=False).stdout.strip() == expected


def system_objects(layout: Layout) -> str:
    """Return system.yaml with the values of this cluster."""
    text = Path(__file__).with_name("system.yaml").read_text()
    return Template(text).substitute(
        host_address=layout.host_address,
        host_name=HOST_NAME,
        domain=DOMAIN,
        dns_service=DNS_SERVICE,
        coredns_image=images.COREDNS,
    )


def wait(layout: Layout, goal: str, service: str, ready: Callable[[], bool]) -> None:
    """Wait for a part of the boot; a failure quotes the end of the service's log."""

    def ready_or_failed() -> bool:
        starts = Cluster(layout.kubeconfig, layout).services().get(service, {}).get("starts", 0)
        if starts > MAX_STARTS:
            raise ClusterUnavailable(f"{goal}: {service} exited {starts - 1} times")
        return ready()

    try:
        namespaces.wait_for(goal, ready_or_failed, BOOT_SECONDS, every=0.2)
    except ClusterUnavailable as problem:
        log = layout.folder / "logs" / f"{service}.log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else ["(no log)"]
        copy = CACHE / f"cluster-{layout.name}-{service}.log"
        if log.exists():
            shutil.copyfile(log, copy)
        raise ClusterUnavailable(f"{problem}. The end of {copy}:\n" + "\n".join(lines)) from None


def down(name: str | None = None) -> bool:
    """Stop a cluster and delete all that belongs to it; return False if there is no such cluster."""
    name = name or default_name()
    with exclusive(CACHE / "cluster-down.lock", "removing a cluster"):  # two test processes may remove one orphan
        layout = read_layout(name) or Layout(name)
        exists = layout.folder.exists()
        namespaces.remove(layout)
        if exists:
            shutil.rmtree(layout.folder)
    return exists


def leftovers(layout: Layout) -> list[str]:
    """Return the processes, folders, interfaces, mounts and rules of a cluster; empty after `down`."""
    remains = [str(path) for path in namespaces.cgroup_folders(layout.cgroup) if path.exists()]
    remains += [f"process {pid}" for pid in sorted(namespaces.cgroup_processes(layout.cgroup))]
    remains += [str(layout.folder)] if layout.folder.exists() else []
    remains += [layout.veth] if Path("/sys/class/net", layout.veth).exists() else []
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    remains += [line for line in mounts if str(layout.folder) in line]
    tables = subprocess.run(
        ["nft", "list", "tables"], capture_output=True, text=True, env=requirements.root_environment(), check=True
    )
    remains += [line for line in tables.stdout.splitlines() if "kube-proxy" in line or "rstar2" in line]
    return remains
