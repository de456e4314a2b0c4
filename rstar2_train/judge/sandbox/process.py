"""Starts the executor's program (executor/program.py) with a pair of pipes per lane.

Used on the trusted side of the pipes: by `local` on the worker's machine (in runsc, or unprotected) and by
`executor_server` in a pod (in a jail).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES, MAX_STDIN_BYTES
from rstar2_train.judge.sandbox.rootfs import EXECUTOR, LIBRARY, PACKAGES_FOLDER, PROGRAM, PYTHON, site
from rstar2_train.judge.types import MAX_CODE_BYTES

PIPE_BYTES = 1 << 20
PYTHON_FLAGS = ("-P", "-S", "-s")
"""No path is added and `site` is not imported: program.py imports all that it needs itself."""
NO_PROCESS_LIMIT = 1 << 20
"""Without a sandbox, RLIMIT_NPROC would also count the other processes of the user."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
"""Loaded at import: code after a fork must not take the loader's lock."""

Ends = dict[str, tuple[int, int]]
"""Lane -> two file descriptors."""


async def start_program(
    lanes: Iterable[str],
    command: Callable[[Ends], list[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: int | None = None,
    core: int | None = None,
) -> tuple[asyncio.subprocess.Process, Ends]:
    """Start the program; return its process and, per lane, the read end of responses and the write end of requests.

    `command` gets, per lane, the descriptors of the new process: read end of requests, write end of responses. The
    process dies with this one. `output`: where its stdout and stderr are written; None: those of this process. `core`:
    the CPU on which it and its descendants run; None: those of this process.
    """
    own_ends: Ends = {}
    program_ends: Ends = {}
    for name in lanes:
        request_read, request_write = os.pipe()
        response_read, response_write = os.pipe()
        with contextlib.suppress(OSError):  # an unprivileged user has a limit on large pipes
            fcntl.fcntl(request_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        own_ends[name] = (response_read, request_write)
        program_ends[name] = (request_read, response_write)
    passed = [descriptor for pair in program_ends.values() for descriptor in pair]
    try:
        process = await asyncio.create_subprocess_exec(
            *command(program_ends),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT if output is not None else None,
            pass_fds=passed,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=partial(_before_exec, core),
        )
    except BaseException:
        for pair in own_ends.values():
            for descriptor in pair:
                os.close(descriptor)
        raise
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return process, own_ends


def sandbox_arguments(ends: Ends, *, other_processes: int = 0, first_user: int = -1) -> list[str]:
    """Return the program's command line inside a sandbox root.

    `other_processes`: processes of the same user that RLIMIT_NPROC counts in addition to those of a call. `first_user`:
    the first of the user ids for calls and sessions, one each; -1: all have the id of the program.
    """
    limits = [1, MAX_CODE_BYTES + MAX_STDIN_BYTES, MAX_OUTPUT_BYTES, other_processes, first_user]
    numbers = ",".join(map(str, limits))
    return [PYTHON, *PYTHON_FLAGS, PROGRAM, str(Path(LIBRARY).parent), PACKAGES_FOLDER, numbers, *_lanes(ends)]


def bare_arguments(ends: Ends, library: Path) -> list[str]:
    """Return the program's command line on the machine itself, without isolation."""
    own = [str(folder)] if (folder := site()) else []
    paths = os.pathsep.join([*own, *(path for path in sys.path if path.endswith("-packages"))])
    numbers = ",".join(map(str, [0, MAX_CODE_BYTES + MAX_STDIN_BYTES, MAX_OUTPUT_BYTES, NO_PROCESS_LIMIT, -1]))
    program = str(EXECUTOR / "program.py")
    return [sys.executable, *PYTHON_FLAGS, program, str(library.parent), paths, numbers, *_lanes(ends)]


def jail_arguments(root: Path, command: list[str]) -> list[str]:
    """Return the command line that runs `command` in a jail: new namespaces with `root` as file system (jail.py)."""
    return [sys.executable, *PYTHON_FLAGS, str(EXECUTOR / "jail.py"), str(root), *command]


def _lanes(ends: Ends) -> list[str]:
    return [f"{name}:{pair[0]}:{pair[1]}" for name, pair in ends.items()]


def _before_exec(core: int | None) -> None:
    """Run in the new process before exec. A killed worker must not leave sandboxes running."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if core is not None:
        with contextlib.suppress(OSError):  # the CPU is offline, or no longer in this process's affinity
            os.sched_setaffinity(0, {core})
