"""Boots and tears down a cluster: machine -> binaries -> images -> namespaces -> control plane -> node -> add-ons.

A boot that fails takes down what it had begun, and its message holds the end of the log that explains it. `down` is the
same whether the cluster runs, was killed half-way, or the machine was restarted under it.
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

from scripts.setup import CACHE, only_one, say
from tests.kube_node import binaries, certificates, components, images, namespaces, requirements
from tests.kube_node.cluster import Cluster, recorded
from tests.kube_node.layout import CLUSTERS, DNS_SERVICE, DOMAIN, HOST_NAME, NODE, SUBNETS, Layout, default_name
from tests.kube_node.requirements import NoCluster

BOOT_SECONDS = 300.0  # for each wait; a busy machine is slow
MANY_STARTS = 15  # some end once or twice because what they need is not there yet
LOG_LINES = 15


def prepare() -> dict[str, Path]:
    """Everything that can be made before a boot; the archives to load."""
    requirements.check()
    binaries.ensure()
    return {name: images.archive(name) for name in images.MAKERS}


def up(name: str | None = None) -> Cluster:
    """Boot a cluster, or return the one of this name that runs already."""
    archives = prepare()
    name = name or default_name()
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise NoCluster(f"A cluster's name is made of a-z, 0-9 and '-', 31 characters at most: {name!r}")
    CLUSTERS.mkdir(parents=True, exist_ok=True)
    with only_one(CACHE / "cluster-boot.lock", "booting a cluster"):
        standing = recorded(name)
        if standing and namespaces.init_pid(standing):
            return Cluster(standing.kubeconfig, standing)
        down(name)
        started = time.monotonic()
        layout = reserve(name)
        try:
            cluster = boot(layout, archives)
        except BaseException:
            down(name)
            raise
    say(f"cluster {name}: node Ready, DNS and images there after {time.monotonic() - started:.0f} s")
    return cluster


def reserve(name: str) -> Layout:
    """Take a free subnet and write the folder."""
    with only_one(CACHE / "clusters.lock", "choosing a subnet"):
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
    """From a written folder to a node that is Ready, with DNS."""
    namespaces.make(layout)
    cluster = Cluster(layout.kubeconfig, layout)
    cluster.inside("nft", "-f", str(components.INSIDE / "nat.nft"))
    all_services = components.services(layout)
    cluster.write_services({name: all_services[name] for name in components.CONTROL_PLANE})
    loaded = lambda: cluster.inside("ctr", "version", check=False).returncode == 0  # noqa: E731
    wait(layout, "containerd", "containerd", loaded)
    for archive in archives.values():
        cluster.load(archive)
    wait(layout, "the API server", "kube-apiserver", lambda: kubectl_says(cluster, "ok", "get", "--raw=/readyz"))
    cluster.write_services(all_services)
    cluster.apply(system_objects(layout))
    account = ("get", "serviceaccount", "default", "-o", "jsonpath={.metadata.name}")
    wait(layout, "service accounts", "kube-controller-manager", lambda: kubectl_says(cluster, "default", *account))
    status = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    wait(layout, "the node", "kubelet", lambda: kubectl_says(cluster, "True", "get", "node", NODE, "-o", status))
    ready = "jsonpath={.status.readyReplicas}"
    dns = ("get", "deployment", "coredns", "-n", "kube-system", "-o", ready)
    wait(layout, "DNS (CoreDNS in kube-system)", "kubelet", lambda: kubectl_says(cluster, "1", *dns))
    return cluster


def kubectl_says(cluster: Cluster, expected: str, *arguments: str) -> bool:
    return cluster.run("kubectl", *arguments, check=False).stdout.strip() == expected


def system_objects(layout: Layout) -> str:
    """system.yaml with this cluster's values."""
    text = Path(__file__).with_name("system.yaml").read_text()
    return Template(text).substitute(
        host_address=layout.host_address,
        host_name=HOST_NAME,
        domain=DOMAIN,
        dns_service=DNS_SERVICE,
        coredns_image=images.COREDNS,
    )


def wait(layout: Layout, what: str, service: str, ready: Callable[[], bool]) -> None:
    """Wait for a part of the boot; on failure say what its log ends with."""

    def ready_or_hopeless() -> bool:
        starts = Cluster(layout.kubeconfig, layout).services().get(service, {}).get("starts", 0)
        if starts > MANY_STARTS:
            raise NoCluster(f"{what}: {service} ended {starts - 1} times")
        return ready()

    try:
        namespaces.wait_for(what, ready_or_hopeless, BOOT_SECONDS, every=0.2)
    except NoCluster as problem:
        log = layout.folder / "logs" / f"{service}.log"
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else ["(no log)"]
        kept = CACHE / f"cluster-{layout.name}-{service}.log"
        if log.exists():
            shutil.copyfile(log, kept)
        raise NoCluster(f"{problem}; {kept} ends with:\n" + "\n".join(lines)) from None


def down(name: str | None = None) -> bool:
    """Tear a cluster down and remove everything of it; False when there was nothing."""
    name = name or default_name()
    layout = recorded(name) or Layout(name)
    there = layout.folder.exists()
    namespaces.end(layout)
    if there:
        shutil.rmtree(layout.folder)
    return there


def leftovers(layout: Layout) -> list[str]:
    """What of a cluster is still on this machine; empty after `down`."""
    found = [str(path) for path in namespaces.cgroup_folders(layout.cgroup) if path.exists()]
    found += [f"process {pid}" for pid in sorted(namespaces.cgroup_processes(layout.cgroup))]
    found += [str(layout.folder)] if layout.folder.exists() else []
    found += [layout.veth] if Path("/sys/class/net", layout.veth).exists() else []
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if str(layout.folder) in line]
    tables = subprocess.run(
        ["nft", "list", "tables"], capture_output=True, text=True, env=requirements.environment(), check=True
    )
    found += [line for line in tables.stdout.splitlines() if "kube-proxy" in line or "rstar2" in line]
    return found
