"""Creates, enters and removes the namespaces, the cgroup and the veth pair of a cluster.

`create` starts init.py as process 1 of new namespaces, with an empty list of services, and connects it to the machine
by one veth pair. `remove` kills process 1, with which the kernel kills every process inside, then removes the cgroups,
which outlive it. `enter` returns the prefix of a command that runs inside.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.kube_node.layout import CLUSTERS, NODE, Layout
from tests.kube_node.requirements import NAMESPACES, ClusterUnavailable, root_environment

CGROUPS = Path("/sys/fs/cgroup")
INIT = Path(__file__).with_name("init.py")
REMOVE_SECONDS = 120.0


def wait_for(goal: str, ready: Callable[[], bool], seconds: float, every: float = 0.05) -> None:
    """Return as soon as `ready()` is true.

    Raises:
        ClusterUnavailable: `ready()` was false for `seconds`; the message names the goal.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterUnavailable(f"{goal}: not within {seconds:.0f} s")
        time.sleep(every)


def ip(*arguments: str, prefix: list[str] | None = None) -> None:
    """Run `ip`, by default on the machine."""
    command = [*(prefix or []), "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=root_environment(), check=False)
    if done.returncode != 0:
        raise ClusterUnavailable(f"`{' '.join(command)}`: {done.stderr.strip()}")


# ------------------------------------------------------------------------------------------------- cgroups


def cgroup_folders(name: str) -> list[Path]:
    """Return the cluster's folder in each cgroup v1 hierarchy, or the single one of cgroup v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name]
    return [
        tree / name for tree in sorted(CGROUPS.iterdir()) if (tree / "cgroup.procs").exists() and tree.name != "unified"
    ]


def create_cgroups(name: str) -> None:
    for folder in cgroup_folders(name):
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # empty in a new v1 group, which no process can join then
            if (folder / "tasks").exists() and (folder / setting).exists():
                (folder / setting).write_text((folder.parent / setting).read_text())


def cgroup_processes(name: str) -> set[int]:
    """Return the process ids of the cluster, as the machine sees them; zombies are excluded."""
    pids: set[int] = set()
    for folder in cgroup_folders(name):
        for procs in folder.rglob("cgroup.procs"):
            pids.update(int(line) for line in procs.read_text().split())
    return {pid for pid in pids if is_running(pid)}


def remove_cgroups(name: str) -> bool:
    """Remove the cluster's cgroups, deepest first; return False if a process in one of them still exits."""
    try:
        for folder in cgroup_folders(name):
            if folder.exists():
                for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                    inner.rmdir()
                folder.rmdir()
    except OSError as problem:
        if problem.errno != errno.EBUSY:
            raise
        return False
    return True


# ------------------------------------------------------------------------------------------------- processes


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def init_pid(layout: Layout) -> int | None:
    """Return the process id of init.py; None if it does not run. The number may belong to another process by now."""
    try:
        pid = int((layout.folder / "init.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(layout.folder) in command and is_running(pid) else None


def enter(layout: Layout) -> list[str]:
    """Return the prefix of a command line that runs inside the cluster's namespaces."""
    pid = init_pid(layout)
    if pid is None:
        raise ClusterUnavailable(f"Cluster {layout.name} does not run. Boot it with `make cluster-up`.")
    return ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--wd=/"]


# ------------------------------------------------------------------------------------------------- create and remove


def free_subnet(taken: set[int], subnets: range) -> int:
    """Return the lowest subnet that is not taken."""
    for subnet in subnets:
        if subnet not in taken:
            return subnet
    raise ClusterUnavailable(
        f"All {len(subnets)} subnets are taken by clusters under {CLUSTERS}. Run `make cluster-down` in their clones."
    )


def taken_subnets() -> set[int]:
    """Return the subnets of this machine's interfaces."""
    listing = subprocess.run(
        ["ip", "-json", "-4", "address"], capture_output=True, env=root_environment(), check=True
    ).stdout
    addresses = [
        item["local"].split(".") for link in json.loads(listing or b"[]") for item in link.get("addr_info", [])
    ]
    return {int(parts[2]) for parts in addresses if parts[:2] == ["10", "213"]}


def create(layout: Layout) -> None:
    """Create cgroups, namespaces and network. The cluster's folder exists, with an empty list of services."""
    create_cgroups(layout.cgroup)
    join = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in cgroup_folders(layout.cgroup))
    init = f"{' '.join(NAMESPACES)} {sys.executable} -I -S {INIT} {layout.folder}"
    with (layout.folder / "init.log").open("wb") as log:
        launcher = subprocess.Popen(
            ["sh", "-c", f"{join}; exec {init}"],
            env=root_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def ready() -> bool:
        if launcher.poll() is not None:
            log = (layout.folder / "init.log").read_text().strip()
            raise ClusterUnavailable(f"The namespaces could not be created: {log}")
        return (layout.folder / "ready").exists()

    wait_for("namespaces", ready, 120)
    inside = enter(layout)
    ip("link", "add", layout.veth, "type", "veth", "peer", "name", "eth0", "netns", str(init_pid(layout)))
    ip("address", "add", f"{layout.host_address}/24", "dev", layout.veth)
    ip("link", "set", layout.veth, "up")
    ip("link", "set", "lo", "up", prefix=inside)
    ip("address", "add", f"{layout.node_address}/24", "dev", "eth0", prefix=inside)
    ip("link", "set", "eth0", "up", prefix=inside)
    ip("route", "add", "default", "via", layout.host_address, prefix=inside)
    forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    subprocess.run([*inside, "sh", "-c", f"{forward}; hostname {NODE}"], env=root_environment(), check=True)


def remove(layout: Layout) -> None:
    """Kill all processes of the cluster, then remove its veth pair and its cgroups."""
    pid = init_pid(layout)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    for straggler in cgroup_processes(layout.cgroup) - {pid}:  # only if init.py was killed before it was ready
        if is_running(straggler):
            os.kill(straggler, signal.SIGKILL)
    wait_for("exit of the cluster's processes", lambda: not cgroup_processes(layout.cgroup), REMOVE_SECONDS)
    if Path("/sys/class/net", layout.veth).exists():
        subprocess.run(["ip", "link", "delete", layout.veth], capture_output=True, env=root_environment(), check=False)
    wait_for("removal of the veth pair", lambda: not Path("/sys/class/net", layout.veth).exists(), REMOVE_SECONDS)
    wait_for("removal of the cgroups", lambda: remove_cgroups(layout.cgroup), REMOVE_SECONDS)
