"""`rstar2 judge serve|run|bench`: the Code Judge by itself, for people who want to run code and nothing else.

`serve` and, without --url, the other two start the whole judge on this machine (judge/local.py) and end it again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from rstar2_train.judge.types import MAX_PENDING, SESSION_IDLE_SECONDS
from rstar2_train.utils.options import count, port, seconds
from rstar2_train.utils.terminal import ending_signals

if TYPE_CHECKING:
    from rstar2_train.judge.local import LocalJudge

TOKEN = "RSTAR2_JUDGE_TOKEN"
PATIENCE_SECONDS = 10.0
"""How long `run` waits for a judge that does not answer: somebody sits there."""
EPILOG = f"""examples:
  rstar2 judge serve                          a judge on a free port of this machine, until Ctrl-C
  {TOKEN}=... rstar2 judge serve --host 0.0.0.0 --port 8088      for others, who need the token
  echo 'print(6 * 7)' | rstar2 judge run -    one program, in a sandbox
  rstar2 judge bench --callers 64             calls per second and waiting times, here
The token is read from {TOKEN}, or from the file that {TOKEN}_FILE names."""


def add_arguments(judge: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    judge.epilog = EPILOG
    judge.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = judge.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    here = argparse.ArgumentParser(add_help=False)
    here.add_argument("--executors", type=count, default=0, help="sandboxes (default: one for each core)")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--url", default="", help="of a judge that runs already; default: one is started for this")

    serve = verbs.add_parser("serve", parents=[here], help="start a judge: Redis, API, worker, gVisor sandboxes")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=0, help="port; 0 (default) takes a free one and prints it")
    serve.add_argument("--insecure", action="store_true", help="allow an open address without a token")
    serve.add_argument(
        "--max-pending",
        type=count,
        default=MAX_PENDING,
        metavar="N",
        help="calls held before 503 (default: %(default)s)",
    )
    serve.add_argument(
        "--session-idle", type=seconds, default=SESSION_IDLE_SECONDS, metavar="SECONDS",
        help="a session without a cell for so long is ended (default: %(default)s)",
    )  # fmt: skip

    run = verbs.add_parser("run", parents=[here, where], help="run a program in a sandbox, print what it printed")
    run.add_argument("file", help="a Python file, or - for standard input")
    run.add_argument("--stdin", type=Path, help="file that the program reads as its standard input")
    run.add_argument("--seconds", type=seconds, default=4, help="time limit (default: %(default)s)")
    run.add_argument("--memory-mib", type=count, default=512, help="memory limit (default: %(default)s)")

    bench = verbs.add_parser("bench", parents=[here, where], help="calls per second and waiting times of a judge")
    bench.add_argument(
        "--snippet",
        choices=["print", "numpy", "sympy", "all"],
        default="all",
        help="what is run (default: %(default)s)",
    )
    bench.add_argument("--callers", type=count, default=64, help="callers at a time (default: %(default)s)")
    bench.add_argument("--calls", type=count, default=400, help="calls in all (default: %(default)s)")


def main(given: argparse.Namespace) -> int:
    """Runs one of them; returns the exit code."""
    from rstar2_train.judge.sandbox.rootfs import SetupError
    from rstar2_train.judge.types import JudgeUnavailable

    verb = {"serve": _serve, "run": _run, "bench": _bench}[given.verb]
    try:
        return verb(given)
    except (SetupError, JudgeUnavailable, RuntimeError, ValueError, OSError) as error:
        print(f"rstar2 judge {given.verb}: {error}", file=sys.stderr)
        return 1


def _serve(given: argparse.Namespace) -> int:
    ended = threading.Event()
    for number in ending_signals():
        signal.signal(number, lambda *_: ended.set())
    told = {
        "host": given.host,
        "port": given.port,
        "api_arguments": ("--max-pending", str(given.max_pending), *(["--insecure"] if given.insecure else [])),
        "worker_arguments": ("--session-idle", str(given.session_idle)),
    }
    with _stack(given, **told) as stack:
        print(f"the judge listens on {stack.url}  (API page: {stack.url}/docs; Ctrl-C ends it)", flush=True)
        while not ended.wait(1):
            stack.check()
    return 0


def _run(given: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from rstar2_train.api.judge_limits import JudgeLimits
    from rstar2_train.judge.client.client import JudgeClient
    from rstar2_train.utils.auth import secret

    code = sys.stdin.read() if given.file == "-" else Path(given.file).read_text()
    stdin = given.stdin.read_text() if given.stdin else ""
    try:
        limits = JudgeLimits(wall_seconds=given.seconds, memory_mib=given.memory_mib)
    except ValidationError as error:
        options = {"wall_seconds": "--seconds", "memory_mib": "--memory-mib"}
        found = [f"{options[str(one['loc'][0])]} {one['input']}: {one['msg'].lower()}" for one in error.errors()]
        raise ValueError("; ".join(found)) from None

    async def call(url: str) -> int:
        async with JudgeClient(url, secret(TOKEN), patience_seconds=PATIENCE_SECONDS) as client:
            result = await client.run(code, stdin, limits=limits)
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        if result.status != "ok":
            print(f"{result.status} after {result.run_seconds:.2f} s", file=sys.stderr)
        return 0 if result.status == "ok" else 1

    with _judge(given) as url:
        return asyncio.run(call(url))


def _bench(given: argparse.Namespace) -> int:
    from rstar2_train.judge.loadgen import SNIPPETS, measure_load
    from rstar2_train.utils.auth import secret

    kinds = list(SNIPPETS) if given.snippet == "all" else [given.snippet]
    table = Table("snippet", "callers", "calls/s", "p50 s", "p99 s", "refused", title="Code Judge")
    with _judge(given) as url:
        for kind in kinds:
            asyncio.run(measure_load(url, kind, callers=8, calls=24, token=secret(TOKEN)))  # what a first call costs
            found = asyncio.run(measure_load(url, kind, callers=given.callers, calls=given.calls, token=secret(TOKEN)))
            cells = (found.calls_per_second, found.p50, found.p99)
            table.add_row(kind, str(found.callers), *(f"{one:.3g}" for one in cells), str(found.refused))
    Console().print(table)
    return 0


@contextmanager
def _judge(given: argparse.Namespace) -> Iterator[str]:
    """The URL of the judge that was named, or of one that lives as long as this does."""
    if given.url:
        yield given.url.rstrip("/")
    else:
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the judge that was started here ends too
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        with _stack(given) as stack:
            yield stack.url


@contextmanager
def _stack(given: argparse.Namespace, **settings: Any) -> Iterator[LocalJudge]:
    from rstar2_train.judge.local import LocalJudge

    executors = given.executors or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="rstar2-judge-") as folder:
        stack = LocalJudge(Path(folder), executors=executors, **settings)
        try:
            with Console(stderr=True).status("starting Redis, the API and the sandboxes ..."):
                stack.start()
            yield stack
        finally:
            stack.stop()
