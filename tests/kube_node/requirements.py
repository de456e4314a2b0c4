"""What a machine must have for a cluster to boot on it, and how that is found out: by trying, never by guessing.

First thing of `make cluster-up`. As root, missing Debian packages are installed (like `make setup` does); everything
else that is missing is said in one message, with what to do. Nothing here changes the machine otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from scripts.setup import CACHE, CannotSetUp, SystemNeed, apt_install, step

CNI_PLUGINS = Path("/usr/lib/cni")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


class NoCluster(Exception):
    """A cluster cannot be had here; the message says why and what to do."""


def command(name: str) -> str | None:
    """Where a command is, also when root's own folders are not on the PATH."""
    return shutil.which(name, path=PATH)


def need(package: str, name: str) -> SystemNeed:
    return SystemNeed(package, lambda: command(name) is not None)


NEEDS = (
    need("etcd-server", "etcd"),
    need("containerd", "containerd"),
    need("runc", "runc"),
    SystemNeed("containernetworking-plugins", lambda: (CNI_PLUGINS / "ptp").exists()),
    need("nftables", "nft"),
    need("conntrack", "conntrack"),
    need("iproute2", "ip"),
    need("util-linux", "nsenter"),
    need("mmdebstrap", "mmdebstrap"),
    need("buildah", "buildah"),
    need("gcc", "gcc"),
)

# One shell line for each thing the kernel must allow; all run inside namespaces of their own and leave nothing.
KERNEL = {
    "a veth pair (CONFIG_VETH)": "ip link add probe0 type veth peer name probe1",
    "nftables with NAT (CONFIG_NF_TABLES, CONFIG_NFT_NAT, CONFIG_NFT_CT)": (
        "nft 'add table ip probe; add chain ip probe nat { type nat hook prerouting priority -100; };"
        " add rule ip probe nat ct state new ip daddr 192.0.2.1 dnat to 192.0.2.2'"
    ),
    "the overlay file system (CONFIG_OVERLAY_FS)": "grep -qw overlay /proc/filesystems || modprobe overlay",
    "a private /proc": "mount -t proc proc /proc",
    "a private /sys": "mount -t sysfs sysfs /sys",
    "forwarding between interfaces": "echo 1 > /proc/sys/net/ipv4/ip_forward",
}
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]


def environment() -> dict[str, str]:
    """This process's environment with root's folders on the PATH."""
    return {**os.environ, "PATH": PATH}


def kernel_lacks() -> list[str]:
    """What the kernel refuses, by name, with its own words; empty when a cluster can boot."""
    script = "\n".join(f"( {line} ) 2>&1 || echo '<- {what}'" for what, line in KERNEL.items())
    probe = [*NAMESPACES, "sh", "-c", script]
    done = subprocess.run(probe, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode != 0:
        return [f"namespaces of its own (mount, network, PID, UTS, IPC, cgroup): {done.stderr.strip()}"]
    return [done.stdout.strip()] if "<-" in done.stdout else []


def check() -> None:
    """Return when a cluster can boot here, missing packages installed; raise NoCluster otherwise."""
    hint = "Or name a cluster that exists: RSTAR2_KUBECONFIG=/path/to/kubeconfig."
    if os.geteuid() != 0:
        raise NoCluster(f"Booting a cluster needs root: it makes namespaces, mounts and a network. Use sudo.\n{hint}")
    missing = [item.package for item in NEEDS if not item.present()]
    if missing:
        try:
            with step(f"system packages: {' '.join(missing)}"):
                apt_install(missing)
        except CannotSetUp as problem:
            raise NoCluster(f"{problem}\n{hint}") from None
    lacks = kernel_lacks()
    if lacks:
        raise NoCluster(
            "This kernel, or this container, does not allow what a node needs:\n  " + "\n  ".join(lacks) + f"\n{hint}"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
