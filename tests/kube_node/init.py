"""Process 1 of a cluster's namespaces: makes the private mounts, keeps services running, reaps what is orphaned.

`namespaces.py` starts it as `python -S -m`-less plain script: standard library only, since it stays for as long as the
cluster does. It follows `services.json` in the cluster's folder: SIGHUP says that the file has changed; a service that
ends is started again after a second, as systemd would; what runs is written to `running.json`. When this process is
killed, the kernel kills all that is in its PID namespace and drops mounts and network: that is the teardown.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

INSIDE = Path("/run/rstar2")
RESTART_SECONDS = 1.0


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def cgroup_hierarchies() -> dict[str, str]:
    """Mount point under /sys/fs/cgroup -> mount options of each cgroup v1 hierarchy; empty on cgroup v2."""
    found = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup":
            general = {"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}
            found[Path(where).name] = ",".join(option for option in options.split(",") if option not in general)
    return found


def make_mounts(folder: Path) -> None:
    """A private /run, /var, /proc, /sys and cgroup tree; nothing of it is seen by the machine."""
    cgroups = cgroup_hierarchies()
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", "mode=755", "rstar2", "/run")
    INSIDE.mkdir()
    mount("--bind", str(folder), str(INSIDE))
    for name in ("lib", "log", "tmp", "cache", "lib/kubelet"):
        (INSIDE / "var" / name).mkdir(parents=True, exist_ok=True)
    (INSIDE / "var/run").symlink_to("/run")
    mount("--bind", str(INSIDE / "var"), "/var")
    for kept in ("/usr", "/opt", "/etc"):  # the machine's own: whatever would write there fails, and is seen
        mount("--bind", kept, kept)
        mount("-o", "remount,bind,ro", kept)
    # The machine's name servers cannot be reached from here: none at all fails at once, they would after ten seconds.
    mount("--bind", str(INSIDE / "resolv.conf"), "/etc/resolv.conf")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "sysfs", "sysfs", "/sys")
    if cgroups:
        mount("-t", "tmpfs", "-o", "mode=755", "cgroups", "/sys/fs/cgroup")
        for name, options in cgroups.items():
            where = Path("/sys/fs/cgroup", name)
            where.mkdir()
            chosen = f"none,{options}" if options.startswith("name=") else options
            mount("-t", "cgroup", "-o", chosen, "cgroup", str(where))
    else:
        mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    mount("--make-rshared", "/")  # the kubelet wants to see mounts that its pods' runtimes make


def leave_cgroup_root() -> None:
    """Move to a leaf: the root of the namespace is where the kubelet makes its own (cgroup v2 insists on leaves)."""
    trees = (
        [Path("/sys/fs/cgroup")]
        if Path("/sys/fs/cgroup/cgroup.procs").exists()
        else list(Path("/sys/fs/cgroup").iterdir())
    )
    for tree in trees:
        leaf = tree / "system"
        leaf.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (tree / setting).exists() and (tree / "tasks").exists():
                (leaf / setting).write_text((tree / setting).read_text())
        (leaf / "cgroup.procs").write_text("1")


class Services:
    """The services that should run, and those that do."""

    def __init__(self) -> None:
        self.wanted: dict[str, dict] = {}
        self.pids: dict[int, str] = {}
        self.due: dict[str, float] = {}
        self.starts: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def read(self) -> None:
        """Take in `services.json`: new ones start at once, those that are gone are ended."""
        self.wanted = json.loads((INSIDE / "services.json").read_text())
        for name in self.wanted:
            if name not in self.starts:
                self.starts[name] = 0
                self.due[name] = 0.0
        for name in self.starts.keys() - self.wanted.keys():
            for pid in [pid for pid, owner in self.pids.items() if owner == name]:
                os.kill(pid, signal.SIGKILL)
                del self.pids[pid]  # reaped like an orphan, and not started again
            for table in (self.due, self.starts, self.ended):
                table.pop(name, None)
            self.write()

    def start_due(self, now: float) -> None:
        for name in [name for name, when in self.due.items() if when <= now]:
            del self.due[name]
            service = self.wanted[name]
            with (INSIDE / "logs" / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    service["command"],
                    env=service["env"],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.pids[process.pid] = name
            self.starts[name] += 1
            self.write()

    def reap(self, now: float) -> None:
        """Collect whatever has ended: services are due again soon, orphans are forgotten."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                name = self.pids.pop(pid, None)
                if name is not None:
                    self.ended[name] = os.waitstatus_to_exitcode(status)
                    self.due[name] = now + RESTART_SECONDS
                    self.write()

    def write(self) -> None:
        """Tell the machine's side what runs."""
        running = {name: pid for pid, name in self.pids.items()}
        state = {
            name: {"pid": running.get(name), "starts": self.starts[name], "lastExit": self.ended.get(name)}
            for name in self.starts
        }
        fresh = INSIDE / "running.new"
        fresh.write_text(json.dumps(state, indent=1))
        fresh.replace(INSIDE / "running.json")


def main(folder: Path) -> None:
    (folder / "init.pid").write_text(str(Path("/proc/self").readlink()))  # the machine's own /proc is still mounted
    make_mounts(folder)
    leave_cgroup_root()
    signals = {signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    services = Services()
    (INSIDE / "logs").mkdir(exist_ok=True)
    (INSIDE / "ready").touch()
    while True:
        services.read()
        services.reap(time.monotonic())
        services.start_due(time.monotonic())
        wait = min(services.due.values(), default=time.monotonic() + 3600) - time.monotonic()
        signal.sigtimedwait(signals, max(wait, 0.05))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
