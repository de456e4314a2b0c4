"""`python -m rstar2_train.judge api|worker|executor`: the judge's processes. Their ready lines are JSON on stdout."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from redis.exceptions import RedisError

from rstar2_train.judge.queue import PREFIX
from rstar2_train.judge.sandbox.rootfs import LANE_PACKAGES, SetupError
from rstar2_train.judge.types import MAX_PENDING, MAX_WAIT_SECONDS, SESSION_IDLE_SECONDS
from rstar2_train.utils.open_files import raise_open_file_limit
from rstar2_train.utils.options import count, port, seconds

SECRETS = """Secrets come from the environment, never from the command line:
  RSTAR2_REDIS_PASSWORD, RSTAR2_REDIS_PASSWORD_FILE   Redis password, or a file that holds it
  RSTAR2_JUDGE_TOKEN, RSTAR2_JUDGE_TOKEN_FILE         bearer token that the API asks for"""

API = "Takes calls over HTTP, queues them in Redis, answers each with how it ended. Listens on loopback by default."
WORKER = "Takes calls from Redis and runs each in a process of its own in a gVisor sandbox."

EXECUTOR = "Lends the sandbox of this pod to one worker at a time, over TCP. Runs inside gVisor, holds no secret."


def parser() -> argparse.ArgumentParser:
    """The command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="python -m rstar2_train.judge", description=__doc__, epilog=SECRETS)
    top.formatter_class = formatter
    roles = top.add_subparsers(dest="role", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--redis", required=True, metavar="URL", help="redis://HOST:PORT/DB, without a password")
    common.add_argument("--prefix", default=PREFIX, help="prefix of all keys in Redis (default: %(default)s)")
    common.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    one = roles.add_parser(
        "api", parents=[common], help="the HTTP API", formatter_class=formatter, epilog=SECRETS, description=API
    )
    one.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    one.add_argument("--port", type=port, default=0, help="port; 0 (default) takes a free one and prints it")
    one.add_argument("--insecure", action="store_true", help="allow an open address without a token")
    one.add_argument(
        "--max-pending", type=count, default=MAX_PENDING, help="calls held before 503 (default: %(default)s)"
    )
    one.add_argument(
        "--max-wait", type=seconds, default=MAX_WAIT_SECONDS, help="seconds before a call is given up (default: 900)"
    )
    two = roles.add_parser(
        "worker", parents=[common], help="runs calls in sandboxes", formatter_class=formatter, epilog=SECRETS,
        description=WORKER,
    )  # fmt: skip
    where = two.add_mutually_exclusive_group(required=True)
    where.add_argument("--executors", type=count, default=0, help="sandboxes on this machine; one a core is best")
    where.add_argument("--executors-at", default="", metavar="HOST:PORT", help="executors in pods, found by this name")
    two.add_argument("--key-file", type=Path, help="the workers' Ed25519 key (PEM), for --executors-at")
    two.add_argument("--platform", choices=["systrap", "ptrace", "kvm"], default="systrap", help="gVisor's platform")
    two.add_argument(
        "--session-idle", type=seconds, default=SESSION_IDLE_SECONDS, metavar="SECONDS",
        help="a session without a cell for so long is ended (default: %(default)s)",
    )  # fmt: skip
    two.add_argument("--state", type=Path, help="folder for this worker alone (default: a temporary one)")
    three = roles.add_parser("executor", help="the server of an executor's pod", description=EXECUTOR)
    three.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    three.add_argument("--port", type=port, default=0, help="port; 0 (default) takes a free one and prints it")
    three.add_argument("--worker-key-file", type=Path, required=True, help="public half of the workers' key (PEM)")
    three.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    for one in (two, three):
        one.add_argument(
            "--isolation", choices=["gvisor", "none"], default="gvisor",
            help="gvisor (default), or none: run the model's code UNPROTECTED",
        )  # fmt: skip
        one.add_argument(
            "--lanes", nargs="+", choices=list(LANE_PACKAGES), default=None,
            help="what the sandboxes have ready (default: all whose packages are installed); bare is always there",
        )  # fmt: skip
    return top


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loops where it is installed: half the Python time of a call."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_api(given: argparse.Namespace) -> None:
    """Runs the API. Each role imports its own half: a worker has no use for a web framework."""
    from rstar2_train.judge.api import app

    app.serve(
        app.ApiSettings(
            redis=given.redis,
            host=given.host,
            port=given.port,
            insecure=given.insecure,
            max_pending=given.max_pending,
            max_wait_seconds=given.max_wait,
            prefix=given.prefix,
        )
    )


def run_worker(given: argparse.Namespace) -> None:
    """Runs a worker."""
    from rstar2_train.judge.worker import worker

    settings = worker.WorkerSettings(
        redis=given.redis,
        executors=given.executors,
        executors_at=given.executors_at,
        key_file=given.key_file,
        isolation=given.isolation,
        state=given.state,
        platform=given.platform,
        prefix=given.prefix,
        session_idle_seconds=given.session_idle,
        lanes=tuple(given.lanes) if given.lanes else None,
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(worker.serve(settings))


def run_executor(given: argparse.Namespace) -> int:
    """Runs an executor's server. 70: a worker found its sandbox not to be tight."""
    from rstar2_train.judge.sandbox import executor_server

    settings = executor_server.ExecutorSettings(
        host=given.host,
        port=given.port,
        worker_key_file=given.worker_key_file,
        isolation=given.isolation,
        lanes=tuple(given.lanes) if given.lanes else None,
    )
    return asyncio.run(executor_server.serve(settings))


def main(arguments: list[str] | None = None) -> int:
    """Runs one role. 0: ended as asked; 78: cannot run here or like this (the message says why)."""
    given = parser().parse_args(arguments)
    raise_open_file_limit()
    logging.basicConfig(
        level=given.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        if given.role == "executor":
            return run_executor(given)
        run_api(given) if given.role == "api" else run_worker(given)
    except (SetupError, ValueError, OSError, RedisError) as error:
        print(f"judge {given.role}: {error}", file=sys.stderr)
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
