"""The namespaces, the cgroup and the veth pair of a cluster: made, entered and ended here.

`make` leaves a process (init.py) that is PID 1 of namespaces of its own, with an empty list of services, joined to the
machine by one veth pair. `end` kills that process, which ends everything inside, then removes what outlives it: the
cgroups. Between the two, `enter` prefixes a command so that it runs inside.
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
from tests.kube_node.requirements import NAMESPACES, NoCluster, environment

CGROUPS = Path("/sys/fs/cgroup")
INIT = Path(__file__).with_name("init.py")
END_SECONDS = 30.0


def wait_for(what: str, ready: Callable[[], bool], seconds: float, every: float = 0.05) -> None:
    """Return as soon as `ready()`; raise NoCluster when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise NoCluster(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


def ip(*arguments: str, prefix: list[str] | None = None) -> None:
    command = [*(prefix or []), "ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode != 0:
        raise NoCluster(f"`{' '.join(command)}`: {done.stderr.strip()}")


# ------------------------------------------------------------------------------------------------- cgroups


def cgroup_folders(name: str) -> list[Path]:
    """The cluster's folder in each cgroup v1 hierarchy, or its only one on cgroup v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS / name]
    return [
        tree / name for tree in sorted(CGROUPS.iterdir()) if (tree / "cgroup.procs").exists() and tree.name != "unified"
    ]


def make_cgroups(name: str) -> None:
    for folder in cgroup_folders(name):
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # empty at first on v1, and nothing can join before they are set
            if (folder / "tasks").exists() and (folder / setting).exists():
                (folder / setting).write_text((folder.parent / setting).read_text())


def cgroup_processes(name: str) -> set[int]:
    """Every process of the cluster that still runs, seen from the machine; zombies hold nothing."""
    pids: set[int] = set()
    for folder in cgroup_folders(name):
        for procs in folder.rglob("cgroup.procs"):
            pids.update(int(line) for line in procs.read_text().split())
    return {pid for pid in pids if alive(pid)}


def remove_cgroups(name: str) -> bool:
    """Remove the cluster's cgroups, deepest first; False when one is still busy with a process that is ending."""
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


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def init_pid(layout: Layout) -> int | None:
    """The namespaces' first process, if it lives and is ours (a number may have been given to another)."""
    try:
        pid = int((layout.folder / "init.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(layout.folder) in command and alive(pid) else None


def enter(layout: Layout) -> list[str]:
    """What to put before a command so that it runs inside the cluster's namespaces."""
    pid = init_pid(layout)
    if pid is None:
        raise NoCluster(f"Cluster {layout.name} does not run: make cluster-up")
    return ["nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--wd=/"]


# ------------------------------------------------------------------------------------------------- make and end


def free_subnet(taken: set[int], subnets: range) -> int:
    """The lowest subnet that no cluster has."""
    for subnet in subnets:
        if subnet not in taken:
            return subnet
    raise NoCluster(
        f"All {len(subnets)} subnets are taken by clusters under {CLUSTERS}: make cluster-down in their clones"
    )


def taken_subnets() -> set[int]:
    """Subnets that some interface of this machine, or a cluster's record, already has."""
    listing = subprocess.run(
        ["ip", "-json", "-4", "address"], capture_output=True, env=environment(), check=True
    ).stdout
    addresses = [
        item["local"].split(".") for link in json.loads(listing or b"[]") for item in link.get("addr_info", [])
    ]
    return {int(parts[2]) for parts in addresses if parts[:2] == ["10", "213"]}


def make(layout: Layout) -> None:
    """Make cgroups, namespaces and network; the folder is there, with an empty list of services."""
    make_cgroups(layout.cgroup)
    join = "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in cgroup_folders(layout.cgroup))
    init = f"{' '.join(NAMESPACES)} {sys.executable} -I -S {INIT} {layout.folder}"
    with (layout.folder / "init.log").open("wb") as log:
        first = subprocess.Popen(
            ["sh", "-c", f"{join}; exec {init}"],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def ready() -> bool:
        if first.poll() is not None:
            raise NoCluster(f"The namespaces could not be set up: {(layout.folder / 'init.log').read_text().strip()}")
        return (layout.folder / "ready").exists()

    wait_for("namespaces", ready, 30)
    inside = enter(layout)
    ip("link", "add", layout.veth, "type", "veth", "peer", "name", "eth0", "netns", str(init_pid(layout)))
    ip("address", "add", f"{layout.host_address}/24", "dev", layout.veth)
    ip("link", "set", layout.veth, "up")
    ip("link", "set", "lo", "up", prefix=inside)
    ip("address", "add", f"{layout.node_address}/24", "dev", "eth0", prefix=inside)
    ip("link", "set", "eth0", "up", prefix=inside)
    ip("route", "add", "default", "via", layout.host_address, prefix=inside)
    forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
    subprocess.run([*inside, "sh", "-c", f"{forward}; hostname {NODE}"], env=environment(), check=True)


def end(layout: Layout) -> None:
    """End all that runs inside and remove what the kernel does not remove by itself."""
    pid = init_pid(layout)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    for straggler in cgroup_processes(layout.cgroup) - {pid}:  # there are some only when init was killed half-way
        if alive(straggler):
            os.kill(straggler, signal.SIGKILL)
    wait_for("the end of the cluster's processes", lambda: not cgroup_processes(layout.cgroup), END_SECONDS)
    if Path("/sys/class/net", layout.veth).exists():
        subprocess.run(["ip", "link", "delete", layout.veth], capture_output=True, env=environment(), check=False)
    wait_for("the end of the veth pair", lambda: not Path("/sys/class/net", layout.veth).exists(), END_SECONDS)
    wait_for("the removal of the cgroups", lambda: remove_cgroups(layout.cgroup), END_SECONDS)
