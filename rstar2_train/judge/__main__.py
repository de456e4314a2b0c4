"""The judge's processes: `python -m rstar2_train.judge api|worker|executor`. Ready lines, in JSON, are on stdout."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from redis.exceptions import RedisError

from rstar2_train.judge.queue import PREFIX
from rstar2_train.judge.sandbox.rootfs import LANE_PACKAGES, SetupError
from rstar2_train.judge.types import MAX_PENDING, MAX_WAIT_SECONDS, SCRIPT_SECONDS, SESSION_IDLE_SECONDS
from rstar2_train.utils.auth import ALIVE_FILE
from rstar2_train.utils.event_loop import run_with_uvloop
from rstar2_train.utils.open_files import raise_open_file_limit
from rstar2_train.utils.options import count, port, seconds

DESCRIPTION = "The processes of the Code Judge. Each prints a ready line, in JSON, to stdout."
SECRETS = """Secrets come from the environment, never from the command line:
  RSTAR2_REDIS_PASSWORD, RSTAR2_REDIS_PASSWORD_FILE   Redis password, or a file that contains it
  RSTAR2_JUDGE_TOKEN, RSTAR2_JUDGE_TOKEN_FILE         bearer token that the API requires"""
API = "Accepts calls over HTTP, queues them in Redis and answers each with its result. Listens on loopback by default."
WORKER = "Leases calls from Redis and runs each in its own process in a gVisor sandbox."
EXECUTOR = "Provides the sandbox of this pod to one worker at a time, over TCP. Runs inside gVisor and holds no secret."
EXIT_CANNOT_RUN = 78


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m rstar2_train.judge", description=DESCRIPTION, epilog=SECRETS, formatter_class=formatter
    )
    roles = top.add_subparsers(dest="role", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    queue = argparse.ArgumentParser(add_help=False)
    queue.add_argument("--redis", required=True, metavar="URL", help="redis://HOST:PORT/DB, without a password")
    queue.add_argument("--prefix", default=PREFIX, help="prefix of all Redis keys (default: %(default)s)")
    listener = argparse.ArgumentParser(add_help=False)
    listener.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    listener.add_argument("--port", type=port, default=0, help="port; 0 (default): a free port, in the ready line")
    runner = argparse.ArgumentParser(add_help=False)
    runner.add_argument(
        "--isolation", choices=["gvisor", "none"], default="gvisor",
        help="gvisor (default), or none: run the model's code UNPROTECTED",
    )  # fmt: skip
    runner.add_argument(
        "--lanes", nargs="+", choices=list(LANE_PACKAGES), default=None,
        help="preloaded packages of the sandboxes (default: all that are installed); bare is always included",
    )  # fmt: skip

    api = roles.add_parser(
        "api", parents=[queue, common, listener], help="the HTTP API", description=API,
        formatter_class=formatter, epilog=SECRETS,
    )  # fmt: skip
    api.add_argument("--insecure", action="store_true", help="allow an open address without a token")
    api.add_argument(
        "--max-pending", type=count, default=MAX_PENDING,
        help="unanswered calls above which requests get 503 (default: %(default)s)",
    )  # fmt: skip
    api.add_argument(
        "--max-wait", type=seconds, default=MAX_WAIT_SECONDS, metavar="SECONDS",
        help="time in the queue after which a call is given up (default: 900)",
    )  # fmt: skip

    api.add_argument(
        "--script-seconds", type=seconds, default=SCRIPT_SECONDS, metavar="SECONDS",
        help="time limit of a program on the routes of code-judge (default: 4)",
    )  # fmt: skip

    worker = roles.add_parser(
        "worker", parents=[queue, common, runner], help="runs calls in sandboxes", description=WORKER,
        formatter_class=formatter, epilog=SECRETS,
    )  # fmt: skip
    sandboxes = worker.add_mutually_exclusive_group(required=True)
    sandboxes.add_argument("--executors", type=count, default=0, help="sandboxes on this machine; best: one per core")
    sandboxes.add_argument("--executors-at", default="", metavar="HOST:PORT", help="DNS name and port of executor pods")
    worker.add_argument("--key-file", type=Path, help="the workers' private Ed25519 key (PEM), for --executors-at")
    worker.add_argument(
        "--platform", choices=["systrap", "ptrace", "kvm"], default="systrap",
        help="platform of gVisor (default: %(default)s)",
    )  # fmt: skip
    worker.add_argument(
        "--session-idle", type=seconds, default=SESSION_IDLE_SECONDS, metavar="SECONDS",
        help="time without a cell after which a session is closed (default: %(default)s)",
    )  # fmt: skip
    worker.add_argument("--state", type=Path, help="folder for this worker only (default: a temporary one)")

    executor = roles.add_parser(
        "executor", parents=[common, listener, runner], help="the server of an executor pod", description=EXECUTOR
    )
    executor.add_argument("--worker-key-file", type=Path, required=True, help="the workers' public Ed25519 key (PEM)")
    return top


def run_api(options: argparse.Namespace) -> None:
    """Run the API. Each role imports only its own part: a worker needs no web framework."""
    from rstar2_train.judge.api import app

    app.serve(
        app.ApiSettings(
            redis=options.redis,
            host=options.host,
            port=options.port,
            insecure=options.insecure,
            max_pending=options.max_pending,
            max_wait_seconds=options.max_wait,
            prefix=options.prefix,
            script_seconds=options.script_seconds,
        )
    )


def run_worker(options: argparse.Namespace) -> None:
    """Run a worker."""
    from rstar2_train.judge.worker import worker

    settings = worker.WorkerSettings(
        redis=options.redis,
        executors=options.executors,
        executors_at=options.executors_at,
        key_file=options.key_file,
        isolation=options.isolation,
        state=options.state,
        platform=options.platform,
        prefix=options.prefix,
        session_idle_seconds=options.session_idle,
        lanes=tuple(options.lanes) if options.lanes else None,
        alive_file=Path(alive) if (alive := os.environ.get(ALIVE_FILE)) else None,
    )
    run_with_uvloop(worker.serve(settings))


def run_executor(options: argparse.Namespace) -> int:
    """Run an executor's server. Return 70 if its sandbox failed the isolation check of a worker."""
    from rstar2_train.judge.sandbox import executor_server

    settings = executor_server.ExecutorSettings(
        host=options.host,
        port=options.port,
        worker_key_file=options.worker_key_file,
        isolation=options.isolation,
        lanes=tuple(options.lanes) if options.lanes else None,
    )
    return asyncio.run(executor_server.serve(settings))


def main(arguments: list[str] | None = None) -> int:
    """Run one role. Return 0 after SIGTERM, 78 if it cannot run here or with these options (see stderr)."""
    options = parser().parse_args(arguments)
    raise_open_file_limit()
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        if options.role == "executor":
            return run_executor(options)
        run_api(options) if options.role == "api" else run_worker(options)
    except (SetupError, ValueError, OSError, RedisError) as error:
        print(f"judge {options.role}: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
