"""`rstar2 judge serve|run|bench`: the Code Judge alone, for users who only want to run code.

`serve` starts the judge on this machine under a Supervisor (judge/local.py), and so do the others without --url.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from rstar2_train.cli.common import Subparsers, add_command, fail
from rstar2_train.judge.types import DRAIN_SECONDS, MAX_PENDING, SCRIPT_SECONDS, SESSION_IDLE_SECONDS
from rstar2_train.utils.auth import JUDGE_TOKEN, check_bind, read_secret
from rstar2_train.utils.listening import bind
from rstar2_train.utils.options import count, port, seconds, user_path
from rstar2_train.utils.text import reason

if TYPE_CHECKING:
    from rstar2_train.judge.local import LocalJudge

T = TypeVar("T")

NAME = "judge"
STOP_SECONDS = DRAIN_SECONDS + 10
"""Grace period of the judge's processes: a little longer than they let running calls finish."""
MAX_RESTARTS = 100
"""Restarts of a process of `serve` within ten minutes before it gives up. A service must survive many kills."""
PATIENCE_SECONDS = 10.0
"""How long `run` waits for a judge that does not answer: a person is waiting."""
MIN_FREE_BYTES = 64 << 20
"""Free disk space in bytes below which no judge starts: queue, logs and bundles of its sandboxes."""
LOW_BYTES = 16 << 20
"""Free disk space in bytes below which `serve` prints a warning."""
DISK_SECONDS = 2.0
"""Interval of the checks of free disk space."""
DESCRIPTION = "Run code in gVisor sandboxes: start a judge, run a program in one, or measure one."
EPILOG = f"""examples:
  rstar2 judge serve                          start a judge on a free port of this machine, until Ctrl-C
  {JUDGE_TOKEN}=... rstar2 judge serve --host 0.0.0.0 --port 8088      for other machines, which need the token
  echo 'print(6 * 7)' | rstar2 judge run -    run a program in a sandbox
  rstar2 judge bench --callers 64             measure calls per second and latency on this machine

The token is read from {JUDGE_TOKEN}, or from the file that {JUDGE_TOKEN}_FILE names."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand and its own subcommands."""
    help = "run the Code Judge alone: serve, run, bench"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    local = argparse.ArgumentParser(add_help=False)
    local.add_argument(
        "--executors", type=count, default=0, metavar="N", help="number of sandboxes (default: one per core)"
    )
    remote = argparse.ArgumentParser(add_help=False)
    remote.add_argument(
        "--url", default="", metavar="URL", help="URL of a running judge (default: start one for this command)"
    )

    serve = add_command(verbs, "serve", main, parents=[local], help="start a judge: Redis, API, worker, sandboxes")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=0, help="port; 0 (default) selects a free port and prints it")
    serve.add_argument("--insecure", action="store_true", help="allow other machines to connect without a token")
    serve.add_argument(
        "--max-pending",
        type=count,
        default=MAX_PENDING,
        metavar="N",
        help="limit of queued calls; further calls get 503 (default: %(default)s)",
    )
    serve.add_argument(
        "--session-idle",
        type=seconds,
        default=SESSION_IDLE_SECONDS,
        metavar="SECONDS",
        help="idle time after which a session is closed (default: %(default)s)",
    )
    serve.add_argument(
        "--script-seconds",
        type=seconds,
        default=SCRIPT_SECONDS,
        metavar="SECONDS",
        help="time limit of a program from a client of code-judge (default: %(default)s)",
    )

    help = "run a program in a sandbox and print its output"
    run = add_command(verbs, "run", main, parents=[local, remote], help=help)
    run.add_argument("file", metavar="FILE", help="Python file, or - for standard input")
    run.add_argument(
        "--stdin", type=user_path, metavar="FILE", help="file that becomes the standard input of the program"
    )
    run.add_argument("--seconds", type=seconds, default=4, metavar="S", help="wall-clock limit (default: %(default)s)")
    run.add_argument("--memory-mib", type=count, default=512, metavar="MIB", help="memory limit (default: %(default)s)")

    help = "measure calls per second and latency of a judge"
    bench = add_command(verbs, "bench", main, parents=[local, remote], help=help)
    bench.add_argument(
        "--snippet",
        choices=["print", "numpy", "sympy", "rstarClient", "verify", "all"],
        default="all",
        help="program to run (default: %(default)s)",
    )
    bench.add_argument(
        "--callers", type=count, default=64, metavar="N", help="concurrent callers (default: %(default)s)"
    )
    bench.add_argument(
        "--calls", type=count, default=400, metavar="N", help="total number of calls (default: %(default)s)"
    )


def main(args: argparse.Namespace) -> int:
    """Run one of the subcommands; return the exit code."""
    from rstar2_train.judge.types import JudgeUnavailable
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path
    from rstar2_train.utils.supervisor import ChildFailed, StopRequested

    add_tools_to_path()
    verb = {"serve": _serve, "run": _run, "bench": _bench}[args.verb]
    try:
        return verb(args)
    except (PreflightError, ChildFailed, JudgeUnavailable, RuntimeError, ValueError, OSError) as error:
        return fail(f"{NAME} {args.verb}", str(error))
    except StopRequested as stop:
        return stop.exit_code


def _serve(args: argparse.Namespace) -> int:
    from rstar2_train.utils.supervisor import StopRequested

    async def wait(judge: LocalJudge) -> None:
        print(f"The judge listens on {judge.url} (API page: {judge.url}/docs). Press Ctrl-C to stop it.", flush=True)
        print(f"Its logs are in {judge.folder / 'logs'}.", flush=True)
        await _report_disk(judge.folder)

    check_bind(args.host, token=read_secret(JUDGE_TOKEN), insecure=args.insecure)
    _check_port(args.host, args.port)
    settings = {
        "max_restarts": MAX_RESTARTS,
        "host": args.host,
        "port": args.port,
        "api_arguments": (
            *("--max-pending", str(args.max_pending), "--script-seconds", str(args.script_seconds)),
            *(["--insecure"] if args.insecure else []),
        ),
        "worker_arguments": ("--session-idle", str(args.session_idle)),
    }
    try:
        _with_local_judge(args, wait, **settings)
    except StopRequested:
        return 0
    return 0


async def _report_disk(folder: Path) -> None:
    """Print when the disk of the judge's state is nearly full, and when it has space again. Does not return.

    Redis refuses calls on a full disk, and no process of the judge can log the reason.
    """
    from rstar2_train.utils.disk import disk_shortage

    low = False
    while True:
        shortage = disk_shortage(folder, needed=LOW_BYTES)
        if shortage and not low:
            print(f"rstar2 judge serve: {shortage}. On a full disk all calls wait.", file=sys.stderr, flush=True)
        elif low and not shortage:
            print(f"rstar2 judge serve: {folder} has space again; calls continue.", file=sys.stderr, flush=True)
        low = bool(shortage)
        await asyncio.sleep(DISK_SECONDS)


def _check_port(host: str, port: int) -> None:
    """Raise OSError if the API cannot listen: another judge there would answer the readiness probes of this one."""
    try:
        bind(host, port).close()
    except OSError as error:
        message = f"{error}. Stop the process that listens there, or choose another --port (0: a free one)."
        raise OSError(message) from error


def _run(args: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from rstar2_train.api.judge_limits import JudgeLimits
    from rstar2_train.judge.client.client import JudgeClient

    try:
        code = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
        stdin = args.stdin.read_text() if args.stdin else ""
    except OSError as error:
        raise OSError(f"{error.filename}: {reason(error)}. Pass a file, or - for standard input.") from error
    try:
        limits = JudgeLimits(wall_seconds=args.seconds, memory_mib=args.memory_mib)
    except ValidationError as error:
        options = {"wall_seconds": "--seconds", "memory_mib": "--memory-mib"}
        messages = [f"{options[str(line['loc'][0])]} {line['input']}: {line['msg'].lower()}" for line in error.errors()]
        raise ValueError("; ".join(messages)) from None

    async def call(url: str) -> int:
        async with JudgeClient(url, read_secret(JUDGE_TOKEN), patience_seconds=PATIENCE_SECONDS) as client:
            result = await client.run(code, stdin, limits=limits)
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        if result.status != "ok":
            print(f"{result.status} after {result.run_seconds:.2f} s", file=sys.stderr)
        return 0 if result.status == "ok" else 1

    return _with_judge(args, call)


def _bench(args: argparse.Namespace) -> int:
    from rstar2_train.judge.loadgen import SNIPPETS, measure_load
    from rstar2_train.rewards.verify import numbered_check

    programs = SNIPPETS | {"verify": numbered_check}
    snippets = list(programs) if args.snippet == "all" else [args.snippet]
    table = Table("snippet", "callers", "calls/s", "p50 s", "p99 s", "rejected", title="Code Judge")

    async def measure(url: str) -> None:
        token = read_secret(JUDGE_TOKEN)
        for snippet in snippets:
            await measure_load(url, programs[snippet], callers=8, calls=24, token=token)  # the first calls are slower
            load = await measure_load(url, programs[snippet], callers=args.callers, calls=args.calls, token=token)
            figures = [f"{value:.3g}" for value in (load.calls_per_second, load.p50, load.p99)]
            table.add_row(snippet, str(load.callers), *figures, str(load.refused))

    _with_judge(args, measure)
    Console().print(table)
    return 0


def _with_judge(args: argparse.Namespace, work: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with the URL of the judge in --url, or of one that runs only for this command."""
    if args.url:
        return asyncio.run(work(args.url.rstrip("/")))
    return _with_local_judge(args, lambda judge: work(judge.url))


def _with_local_judge(
    args: argparse.Namespace, work: Callable[[LocalJudge], Coroutine[Any, Any, T]], **settings: Any
) -> T:
    """Start a judge, run `work`, stop the judge. Raises PreflightError, ChildFailed and StopRequested."""
    from rstar2_train.judge.local import LocalJudge
    from rstar2_train.launch.local.preflight import PreflightError, missing_tools
    from rstar2_train.rewards.equality_program import sandbox_package
    from rstar2_train.utils.disk import disk_shortage, named_disk
    from rstar2_train.utils.open_files import open_file_shortage
    from rstar2_train.utils.ports import free_ports
    from rstar2_train.utils.supervisor import Supervisor, temporary_state

    if missing := missing_tools("gvisor"):
        raise PreflightError("\n".join(missing))
    console = Console(stderr=True)

    def notify(message: str) -> None:
        console.print(message, style="yellow", markup=False, highlight=False)

    async def start(folder: Path) -> T:
        redis_port, api_port = free_ports(2)
        judge = LocalJudge(
            folder,
            redis_port=redis_port,
            port=settings.pop("port", 0) or api_port,
            executors=args.executors or len(os.sched_getaffinity(0)),
            sandbox_packages=(sandbox_package(),),
            token=read_secret(JUDGE_TOKEN),
            stop_seconds=STOP_SECONDS,
            **settings,
        )
        async with Supervisor(logs=folder / "logs", register=folder / "children.json", notify=notify) as supervisor:

            async def start_and_work() -> T:
                with console.status("Starting Redis, the API and the sandboxes ..."):
                    await judge.start(supervisor)
                return await work(judge)

            return await supervisor.run_until_stopped(start_and_work())

    with temporary_state("rstar2-judge-") as folder, named_disk(folder):
        if shortage := open_file_shortage():
            raise PreflightError(shortage)
        if shortage := disk_shortage(folder, needed=MIN_FREE_BYTES):
            raise PreflightError(f"{shortage}, or set TMPDIR to a folder of another disk")
        return asyncio.run(start(folder))
