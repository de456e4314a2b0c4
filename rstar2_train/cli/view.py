"""`rstar2 view`: serve a page that follows a job. The work is in `analysis/live`."""

from __future__ import annotations

import argparse

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, unknown_job
from rstar2_train.utils.options import count, port
from rstar2_train.utils.text import reason

NAME = "view"
DESCRIPTION = """Serve a page on 127.0.0.1 that follows a job while it runs: curves of reward, tool errors, length,
staleness and idle shares, and its newest trajectories with tool calls, verdict and selection."""
EPILOG = """examples:
  rstar2 view tiny                       print the address of the page; Ctrl-C stops the server
  rstar2 view tiny --port 8265           on a fixed port, which ssh -L 8265:127.0.0.1:8265 HOST forwards
  rstar2 view tiny --limit 100000        more trajectories in the list

Reads the job's state; the job does not notice it. The address has a token, so that other users of the machine cannot
open it. `rstar2 analyse` writes pages that can be copied, with the entropy study."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "follow a running job in a browser: curves, newest trajectories"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("job", metavar="JOB", help="name of the job, as in its manifest")
    add_page_options(parser)
    add_state_option(parser)


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the page, also for `kubectl rstar2 view`."""
    parser.add_argument("--port", type=port, default=0, metavar="PORT", help="port (default: a free one)")
    parser.add_argument(
        "--limit",
        type=count,
        default=20_000,
        metavar="N",
        help="approximate number of trajectories in the list, the newest; steps are not split (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C; return the exit code."""
    from rstar2_train.analysis.live.job import LiveJob
    from rstar2_train.analysis.live.server import ADDRESS, ViewServer
    from rstar2_train.api.state_dir import JobState

    state = JobState(args.state / args.job)
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    try:
        server = ViewServer(LiveJob(state, limit=args.limit), name=args.job, port=args.port)
    except OSError as error:
        return fail(NAME, f"cannot listen on {ADDRESS}:{args.port}: {reason(error)}. Set another --port")
    print(f"{args.job}: open {server.url} (Ctrl-C stops this server; the job is not affected)", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
