"""The jail inside an executor pod: a small root of its own, without the pod's processes, network and files.

The executor's server (`judge/sandbox/executor_server.py`) runs it, without privileges, as `python -P -S -s jail.py ROOT
PROGRAM ARGUMENTS...`; a user namespace gives the rights that it needs. The root is that of a local sandbox, so the same
isolation check applies to both. The jail ends, with every process in it, when this program ends.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, NOEXEC, REMOUNT, BIND, RECURSIVE, PRIVATE, READONLY = 2, 4, 8, 32, 4096, 16384, 1 << 18, 1
DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
SYS_PIVOT_ROOT, SYS_CAPSET = {"x86_64": (155, 126), "aarch64": (41, 91)}[os.uname().machine]
LAST_CAPABILITY = 40
UNPRIVILEGED_ID = 65534

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> None:
    """Raise OSError if a call into the C library failed."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Call mount(2). Raises OSError."""
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    check(libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount {target}")


def write(path: str, text: str) -> None:
    """Write a text to a file in /proc."""
    with open(path, "w") as file:  # noqa: PTH123  (pathlib is not worth its memory here)
        file.write(text)


def create_namespaces() -> None:
    """Enter new namespaces of every kind, with the user and group 65534."""
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS), "unshare")
    write("/proc/self/uid_map", f"{UNPRIVILEGED_ID} {user} 1")
    if os.path.exists("/proc/self/setgroups"):  # noqa: PTH110  (Linux requires it; gVisor does not have it)
        write("/proc/self/setgroups", "deny")
    write("/proc/self/gid_map", f"{UNPRIVILEGED_ID} {group} 1")


def enter(root: str) -> None:
    """Make `root` the root file system, read-only except for a small new /tmp."""
    mount("none", "/", None, RECURSIVE | PRIVATE)
    mount(root, root, None, BIND | RECURSIVE)
    mount("proc", f"{root}/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("tmpfs", f"{root}/tmp", "tmpfs", NOSUID | NODEV, "size=1m")
    mount(root, root, None, REMOUNT | BIND | READONLY)
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount the pod's root")
    os.chdir("/")


def drop_privileges() -> None:
    """Drop all capabilities permanently."""
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.syscall(SYS_CAPSET, header, (ctypes.c_uint32 * 6)()), "capset")
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


def main() -> None:
    """Start the program as the first process of the jail, and exit with its status."""
    root, *command = sys.argv[1:]
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    create_namespaces()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        enter(root)
        drop_privileges()
        os.execv(command[0], command)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
