"""Checks that a cluster can boot on this machine, by trying each kernel feature.

First step of `make cluster-up`. As root it installs missing Debian packages, like `make setup`. All other missing
features are listed in one message with the fix. The machine is not changed otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from scripts.setup import CACHE, SetupFailed, SystemNeed, apt_install, step

POLICY = Path("/usr/sbin/policy-rc.d")
SERVICES = ("etcd.service", "containerd.service", "nftables.service", "conntrackd.service", "prometheus.service")
"""Services of the packages; the tests start programs of their own."""
CNI_PLUGINS = Path("/usr/lib/cni")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"])


class ClusterUnavailable(Exception):
    """No cluster can be booted or reached. The message has the cause and the fix."""


def find_command(name: str) -> str | None:
    """Return the path of a command; the folders of root's commands are searched too."""
    return shutil.which(name, path=PATH)


def debian_need(package: str, name: str) -> SystemNeed:
    """Return the need of a package that provides the command `name`."""
    return SystemNeed(package, lambda: find_command(name) is not None)


ETCD = debian_need("etcd-server", "etcd")
NEEDS = (
    ETCD,
    debian_need("containerd", "containerd"),
    debian_need("runc", "runc"),
    SystemNeed("containernetworking-plugins", lambda: (CNI_PLUGINS / "ptp").exists()),
    debian_need("nftables", "nft"),
    debian_need("conntrack", "conntrack"),
    debian_need("iproute2", "ip"),
    debian_need("util-linux", "nsenter"),
    debian_need("mmdebstrap", "mmdebstrap"),
    debian_need("buildah", "buildah"),
    debian_need("gcc", "gcc"),
)

KERNEL_PROBES = {
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
"""Kernel feature -> shell line that needs it. The lines run in temporary namespaces and leave nothing behind."""
NAMESPACES = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]


def root_environment() -> dict[str, str]:
    """Return this process's environment with the folders of root's commands on the PATH."""
    return {**os.environ, "PATH": PATH}


def missing_kernel_features() -> list[str]:
    """Return the features that the kernel refuses, with its error messages; empty if a cluster can boot."""
    script = "\n".join(f"( {line} ) 2>&1 || echo '<- {feature}'" for feature, line in KERNEL_PROBES.items())
    probe = [*NAMESPACES, "sh", "-c", script]
    done = subprocess.run(probe, capture_output=True, text=True, env=root_environment(), check=False)
    if done.returncode != 0:
        return [f"namespaces (mount, network, PID, UTS, IPC, cgroup): {done.stderr.strip()}"]
    return [done.stdout.strip()] if "<-" in done.stdout else []


@contextlib.contextmanager
def without_services(policy: Path = POLICY, root: Path = Path("/")) -> Iterator[None]:
    """Keep the packages that are installed meanwhile from starting and enabling services of this machine.

    Services that were enabled before stay so. `policy`: the file that Debian asks; `root`: of systemd's units.
    """
    before, is_ours = enabled_services(root), not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if is_ours:
            policy.unlink(missing_ok=True)
        if new := sorted(enabled_services(root) - before):
            subprocess.run(["systemctl", f"--root={root}", "disable", *new], capture_output=True, check=False)


def enabled_services(root: Path) -> set[str]:
    """Return those of SERVICES that systemd starts at the next boot; none where there is no systemd."""
    if find_command("systemctl") is None:
        return set()
    enabled = set()
    for name in SERVICES:
        command = ["systemctl", f"--root={root}", "is-enabled", name]
        if subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "enabled":
            enabled.add(name)
    return enabled


def install(*needs: SystemNeed) -> None:
    """Install the missing packages, as root. Raises ClusterUnavailable with the command for the user."""
    missing = [need.package for need in needs if not need.present()]
    if missing:
        try:
            with step(f"system packages: {' '.join(missing)}"), without_services():
                apt_install(missing)
        except SetupFailed as problem:
            raise ClusterUnavailable(str(problem)) from None


def check() -> None:
    """Return if a cluster can boot here, after installing missing packages.

    Raises:
        ClusterUnavailable: no root, a package that cannot be installed, or a kernel feature that is missing.
    """
    hint = "Or use an existing cluster: RSTAR2_KUBECONFIG=/path/to/kubeconfig."
    if os.geteuid() != 0:
        raise ClusterUnavailable(
            f"A cluster needs root to boot: it creates namespaces, mounts and a network. Use sudo.\n{hint}"
        )
    try:
        install(*NEEDS)
    except ClusterUnavailable as problem:
        raise ClusterUnavailable(f"{problem}\n{hint}") from None
    refused = missing_kernel_features()
    if refused:
        raise ClusterUnavailable(
            "This kernel or this container refuses features that a node needs:\n  " + "\n  ".join(refused) + f"\n{hint}"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
