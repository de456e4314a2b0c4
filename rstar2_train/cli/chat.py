"""`rstar2 chat`: chat with a served model in the terminal. The client is `serving/chat.py`, the view `chat_view.py`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from rstar2_train.cli.common import Subparsers, add_base_option, add_command, add_state_option, fail
from rstar2_train.cli.serve import PORT
from rstar2_train.utils.auth import SERVE_TOKEN, read_secret
from rstar2_train.utils.options import count

NAME = "chat"
DESCRIPTION = "Chat with a served model in the terminal. Its tool calls and their outputs are shown while it answers."
EPILOG = f"""examples:
  rstar2 chat --model tiny                     start the model, chat, stop it
  rstar2 chat --model tiny "Let X be the gcd of 48 and 36. Find X."      ask one question
  rstar2 chat --model my-job.yaml              the same with the newest model in the bucket of a job
  rstar2 chat < question.txt                   ask a running server (http://127.0.0.1:{PORT})
  {SERVE_TOKEN}=... rstar2 chat --url http://host:{PORT}

Ctrl-C stops an answer, Ctrl-D ends the conversation. /new starts another one."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "chat with a served model in the terminal"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "prompt", nargs="?", metavar="QUESTION", help="one question; default: standard input, or a conversation"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--model", help="start `rstar2 serve` with this model, and stop it at the end")
    where.add_argument(
        "--url", metavar="URL", default=f"http://127.0.0.1:{PORT}", help="URL of a server (default: %(default)s)"
    )
    add_base_option(parser)
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature (default: the server's, 0.6)"
    )
    parser.add_argument(
        "--max-tokens",
        type=count,
        metavar="N",
        help="limit of an answer in tokens, tool outputs included (default: the context)",
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Chat; return the exit code."""
    from rstar2_train.cli.chat_view import converse
    from rstar2_train.serving.chat import ChatClient, ChatFailed, started

    console = Console(highlight=False)
    try:
        token = read_secret(SERVE_TOKEN)
        try:
            prompt = args.prompt if args.prompt is not None or sys.stdin.isatty() else sys.stdin.read()
            (prompt or "").encode()  # a lenient locale decodes bytes that are not UTF-8 to lone surrogates
        except UnicodeError as error:
            raise ChatFailed("the question is not UTF-8 text") from error
        if args.base and not args.model:
            raise ChatFailed("--base has no effect without --model. Remove it.")
        starting = Console(stderr=True).status(f"Starting {args.model} ...")
        with started(args.model, base=args.base, jobs=args.state, url=args.url, starting=starting) as url:
            client = ChatClient(url, token=token, temperature=args.temperature, max_tokens=args.max_tokens)
            with client:
                return converse(client, console, prompt=prompt)
    except (ChatFailed, OSError) as error:
        return fail(NAME, str(error))
