"""Process 1 of a cluster's namespaces: creates the private mounts, keeps services running, reaps orphans.

namespaces.py starts it as a plain script with the standard library only, because it runs as long as the cluster. It
follows `services.json` in the cluster's folder and reads it again on SIGHUP. A service that exits is restarted after
one second, as systemd would do. `running.json` lists the running services. If this process is killed, the kernel kills
every process in its PID namespace and drops mounts and network: that is the teardown.
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
    """Return mount point under /sys/fs/cgroup -> mount options of each cgroup v1 hierarchy; empty on cgroup v2."""
    hierarchies = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, options, *_ = line.split()
        if kind == "cgroup":
            general = {"rw", "ro", "relatime", "nosuid", "nodev", "noexec"}
            specific = ",".join(option for option in options.split(",") if option not in general)
            hierarchies[Path(mount_point).name] = specific
    return hierarchies


def create_mounts(folder: Path) -> None:
    """Mount a private /run, /var, /proc, /sys and cgroup tree, which the machine does not see."""
    cgroups = cgroup_hierarchies()
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", "mode=755", "rstar2", "/run")
    INSIDE.mkdir()
    mount("--bind", str(folder), str(INSIDE))
    for name in ("lib", "log", "tmp", "cache", "lib/kubelet"):
        (INSIDE / "var" / name).mkdir(parents=True, exist_ok=True)
    (INSIDE / "var/run").symlink_to("/run")
    mount("--bind", str(INSIDE / "var"), "/var")
    for shared in ("/usr", "/opt", "/etc"):  # the machine's own folders, read-only: a write to them fails visibly
        mount("--bind", shared, shared)
        mount("-o", "remount,bind,ro", shared)
    # The machine's name servers are unreachable from here. Without one, a lookup fails immediately, not after 10 s.
    mount("--bind", str(INSIDE / "resolv.conf"), "/etc/resolv.conf")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "sysfs", "sysfs", "/sys")
    if cgroups:
        mount("-t", "tmpfs", "-o", "mode=755", "cgroups", "/sys/fs/cgroup")
        for name, options in cgroups.items():
            target = Path("/sys/fs/cgroup", name)
            target.mkdir()
            chosen = f"none,{options}" if options.startswith("name=") else options
            mount("-t", "cgroup", "-o", chosen, "cgroup", str(target))
    else:
        mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    mount("--make-rshared", "/")  # the kubelet must see the mounts of its container runtimes


def leave_cgroup_root() -> None:
    """Move to a leaf group: the kubelet creates its own groups in the root, and cgroup v2 wants processes in leaves."""
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
    """The services of `services.json` and their processes."""

    def __init__(self) -> None:
        self.desired: dict[str, dict] = {}
        self.pids: dict[int, str] = {}
        self.due: dict[str, float] = {}
        """Service -> time of its next start."""
        self.starts: dict[str, int] = {}
        self.exit_codes: dict[str, int] = {}

    def read(self) -> None:
        """Read `services.json`: new services are due immediately, removed ones are killed."""
        self.desired = json.loads((INSIDE / "services.json").read_text())
        for name in self.desired:
            if name not in self.starts:
                self.starts[name] = 0
                self.due[name] = 0.0
        for name in self.starts.keys() - self.desired.keys():
            for pid in [pid for pid, owner in self.pids.items() if owner == name]:
                os.kill(pid, signal.SIGKILL)
                del self.pids[pid]  # reaped like an orphan, and not restarted
            for table in (self.due, self.starts, self.exit_codes):
                table.pop(name, None)
            self.write()

    def start_due(self, now: float) -> None:
        """Start each service whose time has come; its output is appended to its log."""
        for name in [name for name, when in self.due.items() if when <= now]:
            del self.due[name]
            service = self.desired[name]
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
        """Collect every exited process; a service is scheduled for a restart."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                name = self.pids.pop(pid, None)
                if name is not None:
                    self.exit_codes[name] = os.waitstatus_to_exitcode(status)
                    self.due[name] = now + RESTART_SECONDS
                    self.write()

    def write(self) -> None:
        """Write `running.json` for the machine's side."""
        running = {name: pid for pid, name in self.pids.items()}
        state = {
            name: {"pid": running.get(name), "starts": self.starts[name], "lastExit": self.exit_codes.get(name)}
            for name in self.starts
        }
        new = INSIDE / "running.new"
        new.write_text(json.dumps(state, indent=1))
        new.replace(INSIDE / "running.json")


def main(folder: Path) -> None:
    """Mount, then follow the services until the process is killed."""
    (folder / "init.pid").write_text(str(Path("/proc/self").readlink()))  # before the mounts: the machine's own number
    create_mounts(folder)
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
