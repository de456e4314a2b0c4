"""Starts the executor's program (executor/program.py) with a pair of pipes a lane: in runsc, in a cell, or unprotected.

Used by whoever is on this side of the pipes: `sandbox_local` on the worker's machine, `executor_server` in a pod.
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

from rstar2_train.judge.sandbox.rootfs import EXECUTOR, LIBRARY, PACKAGES_FOLDER, PROGRAM, PYTHON
from rstar2_train.judge.types import MAX_CODE_BYTES, MAX_OUTPUT_BYTES, MAX_STDIN_BYTES

PIPE_BYTES = 1 << 20
PYTHON_FLAGS = ("-P", "-S", "-s")
"""Nothing is imported that program.py does not ask for."""
NO_PROCESS_LIMIT = 1 << 20
"""Without a sandbox the user's other processes would be counted too."""
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
"""Loaded here, since after a fork nothing should be that takes a lock."""

Ends = dict[str, tuple[int, int]]
"""Lane -> two descriptors."""


async def start_program(
    lanes: Iterable[str],
    command: Callable[[Ends], list[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: int | None = None,
    core: int | None = None,
) -> tuple[asyncio.subprocess.Process, Ends]:
    """Start it; returns the process and, for each lane, where its responses are read and its requests written.

    `command`: of each lane's descriptors in the new process, where it reads requests and writes responses. The
    process dies with this one. `output`: for what it prints; None: this process's own. `core`: the only CPU that it and
    all it starts run on; None: those of this process.
    """
    ours: Ends = {}
    theirs: Ends = {}
    for name in lanes:
        request_read, request_write = os.pipe()
        response_read, response_write = os.pipe()
        with contextlib.suppress(OSError):  # an ordinary user may have so many large pipes and no more
            fcntl.fcntl(request_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        ours[name] = (response_read, request_write)
        theirs[name] = (request_read, response_write)
    passed = [descriptor for pair in theirs.values() for descriptor in pair]
    try:
        process = await asyncio.create_subprocess_exec(
            *command(theirs),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT if output is not None else None,
            pass_fds=passed,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=partial(_before_it_runs, core),
        )
    except BaseException:
        for pair in ours.values():
            for descriptor in pair:
                os.close(descriptor)
        raise
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return process, ours


def inside_arguments(ends: Ends, *, others: int) -> list[str]:
    """The program's command line inside a sandbox's root. `others`: processes of its user beside a call's."""
    serve = ",".join(map(str, [1, MAX_CODE_BYTES + MAX_STDIN_BYTES, MAX_OUTPUT_BYTES, others]))
    return [PYTHON, *PYTHON_FLAGS, PROGRAM, str(Path(LIBRARY).parent), PACKAGES_FOLDER, serve, *_lanes(ends)]


def bare_arguments(ends: Ends, library: Path) -> list[str]:
    """The program's command line on the machine itself, with no wall around it."""
    paths = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    serve = ",".join(map(str, [0, MAX_CODE_BYTES + MAX_STDIN_BYTES, MAX_OUTPUT_BYTES, NO_PROCESS_LIMIT]))
    program = str(EXECUTOR / "program.py")
    return [sys.executable, *PYTHON_FLAGS, program, str(library.parent), paths, serve, *_lanes(ends)]


def cell_arguments(root: Path, command: list[str]) -> list[str]:
    """A command inside a cell: namespaces of its own in which `root` is all there is (executor/jail.py)."""
    return [sys.executable, *PYTHON_FLAGS, str(EXECUTOR / "jail.py"), str(root), *command]


def _lanes(ends: Ends) -> list[str]:
    return [f"{name}:{pair[0]}:{pair[1]}" for name, pair in ends.items()]


def _before_it_runs(core: int | None) -> None:
    """In the new process, before it becomes another program: a killed worker must not leave sandboxes behind."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if core is not None:
        with contextlib.suppress(OSError):  # it was taken offline, or from us
            os.sched_setaffinity(0, {core})
