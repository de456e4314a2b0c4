"""`rstar2 serve` and `rstar2 chat`: their arguments, and how they end; the work is in `serving`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from rstar2_train.tools.schema import TOOLS
from rstar2_train.utils.options import ACCELERATORS, count, port, seconds

TOKEN = "RSTAR2_SERVE_TOKEN"
PORT = 8000
SERVE_EPILOG = f"""MODEL is a Hugging Face folder, a job (its last trained model), or a job's stage. A job's model
is served with that job's system prompt, prompt prefix, tool and limits.

examples:
  rstar2 serve tiny                            what the job `tiny` has trained, on 127.0.0.1:{PORT}, until Ctrl-C
  rstar2 serve tiny/rl-1 --port 0              the model of its stage rl-1, on a free port
  rstar2 serve ./Qwen3-14B --context 16384
  rstar2 serve ./Qwen3-14B --endpoint http://engine:8000 --judge http://judge:8080     both run already
  {TOKEN}=... rstar2 serve tiny --host 0.0.0.0      for others, who need the token

then, with any OpenAI client:
  curl -N http://127.0.0.1:{PORT}/v1/chat/completions -H 'Content-Type: application/json' -d '
    {{"model": "tiny/rl-3", "stream": true, "messages": [{{"role": "user", "content": "Find 6 times 7."}}]}}'

The token is read from {TOKEN}, or from the file that {TOKEN}_FILE or --token-file names; those of
an engine and a judge elsewhere from RSTAR2_ENGINE_TOKEN and RSTAR2_JUDGE_TOKEN, or files named in the same way.
On a cluster: examples/serve.yaml."""
CHAT_EPILOG = f"""examples:
  rstar2 chat --model tiny                     starts the model, talks, ends it
  rstar2 chat --model tiny "Let X be the gcd of 48 and 36. Find X."      one question, then the end
  rstar2 chat < question.txt                   against a server that runs already (http://127.0.0.1:{PORT})
  {TOKEN}=... rstar2 chat --url http://host:{PORT}

Ctrl-C stops an answer, Ctrl-D ends the conversation. /new begins another."""


def add_serve_arguments(serve: argparse.ArgumentParser) -> None:
    """Options of `serve`, but for --state, which all commands on jobs share."""
    serve.epilog = SERVE_EPILOG
    serve.formatter_class = argparse.RawDescriptionHelpFormatter
    serve.description = (
        "Serve a model with its tool: engine, judge and Redis on this machine, behind an OpenAI-compatible endpoint. "
        "An engine or a judge that runs already is waited for and used in place of one started here."
    )
    serve.add_argument("model", help="a Hugging Face folder, JOB, or JOB/STAGE")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=PORT, help="port; 0 takes a free one (default: %(default)s)")
    serve.add_argument("--token-file", type=Path, help="file with the token that clients must send")
    serve.add_argument("--insecure", action="store_true", help="allow an open address without a token")
    serve.add_argument("--endpoint", default="", metavar="URL", help="a vLLM server that serves the model already")
    serve.add_argument("--judge", default="", metavar="URL", help="a judge that runs already (`rstar2 judge serve`)")
    serve.add_argument("--context", type=count, help="tokens of prompt and answer (default: the model's, or 32768)")
    serve.add_argument("--max-turns", type=count, default=30, help="most turns of an answer (default: %(default)s)")
    serve.add_argument("--system-prompt", metavar="TEXT", help="in place of the job's, or the built-in one")
    serve.add_argument("--prompt-prefix", metavar="TEXT", help="put before the first question; may be empty")
    serve.add_argument("--tool", choices=list(TOOLS), help="the model's tool (default: the job's)")
    serve.add_argument("--executors", type=count, help="sandboxes of the judge (default: the job's, or 2)")
    serve.add_argument(
        "--accelerator", choices=tuple(ACCELERATORS), help="what the engine computes on (default: what is here)"
    )
    serve.add_argument(
        "--judge-patience",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long a judge may be away before a call fails (default: %(default)s)",
    )
    serve.add_argument(
        "--grace",
        type=count,
        default=5,
        metavar="SECONDS",
        help="what answers under way have to end when the server is ended (default: %(default)s)",
    )


def add_chat_arguments(chat: argparse.ArgumentParser) -> None:
    """Options of `chat`, but for --state."""
    chat.epilog = CHAT_EPILOG
    chat.formatter_class = argparse.RawDescriptionHelpFormatter
    chat.description = "Talk to a served model in the terminal; its calls and their outputs are shown as they come."
    chat.add_argument("prompt", nargs="?", help="one question; default: standard input, or a conversation")
    where = chat.add_mutually_exclusive_group()
    where.add_argument("--model", help="start `rstar2 serve` with this model, and end it at the end")
    where.add_argument("--url", default=f"http://127.0.0.1:{PORT}", help="of a server (default: %(default)s)")
    chat.add_argument("--temperature", type=float, help="of sampling (default: the server's, 0.6)")
    chat.add_argument("--max-tokens", type=count, help="of an answer, outputs included (default: what fits)")


def serve_main(given: argparse.Namespace) -> int:
    """Serve; returns the exit code."""
    from rstar2_train.api.roles import AcceleratorSpec
    from rstar2_train.launch.local.preflight import PreflightError, vendor
    from rstar2_train.rollout.chat_format import ChatFormatError
    from rstar2_train.serving.external import ExternalServiceRejected, ExternalServices
    from rstar2_train.serving.model import ModelNotFound, adjusted, find
    from rstar2_train.serving.server import EndpointSettings
    from rstar2_train.serving.stack import run
    from rstar2_train.utils.auth import secret
    from rstar2_train.utils.supervisor import ChildFailed

    console = Console(stderr=True)

    def say(words: str) -> None:
        console.print(words, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def ready(url: str) -> None:
        console.print(f"{served.name} is served at {url}/v1  (Ctrl-C ends it)", highlight=False, markup=False)
        print(json.dumps({"event": "ready", "url": url, "model": served.name}), flush=True)

    if (given.endpoint and given.accelerator) or (given.judge and given.executors):
        print("rstar2 serve: --accelerator is of an engine, --executors of a judge started here", file=sys.stderr)
        return 1
    try:
        served = adjusted(
            find(given.model, jobs=given.state),
            context=given.context,
            system_prompt=given.system_prompt,
            prompt_prefix=given.prompt_prefix,
            tool=given.tool,
            accelerator=AcceleratorSpec.of_vendor(ACCELERATORS[given.accelerator] if given.accelerator else vendor()),
            executors=given.executors,
        )
        endpoint = EndpointSettings(
            host=given.host,
            port=given.port,
            token=_read_token(given.token_file) if given.token_file else secret(TOKEN),
            insecure=given.insecure,
            max_turns=given.max_turns,
            judge_patience=given.judge_patience,
            grace=given.grace,
        )
        there = ExternalServices(
            engine=given.endpoint.rstrip("/").removesuffix("/v1"),
            engine_token=secret("RSTAR2_ENGINE_TOKEN") or "",
            judge=given.judge.rstrip("/"),
            judge_token=secret("RSTAR2_JUDGE_TOKEN") or "",
        )
        here = [part for part, url in (("engine", there.engine), ("judge and Redis", there.judge)) if not url]
        doing = f"starting {', '.join(here)}" if here else "starting the endpoint"
        console.print(f"{doing} for {served.folder} ...", style="dim", highlight=False)
        run(served, endpoint, there, say=say, ready=ready)
    except (
        ModelNotFound,
        ChatFormatError,
        PreflightError,
        ChildFailed,
        ExternalServiceRejected,
        ValueError,
        OSError,
    ) as error:
        print(f"rstar2 serve: {error}", file=sys.stderr)
        return 1
    return 0


def chat_main(given: argparse.Namespace) -> int:
    """Talk; returns the exit code."""
    from rstar2_train.serving.chat import ChatClient, ChatFailed, converse, started
    from rstar2_train.utils.auth import secret

    console = Console(highlight=False)
    try:
        token = secret(TOKEN)
        try:
            prompt = given.prompt if given.prompt is not None or sys.stdin.isatty() else sys.stdin.read()
            (prompt or "").encode()  # a locale that decodes leniently leaves half characters for what is no UTF-8
        except UnicodeError as error:
            raise ChatFailed("the question is not UTF-8 text") from error
        with started(given.model, jobs=given.state, token=token, url=given.url) as url:
            client = ChatClient(url, token=token, temperature=given.temperature, max_tokens=given.max_tokens)
            with client:
                return converse(client, console, prompt=prompt)
    except (ChatFailed, OSError) as error:
        print(f"rstar2 chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _read_token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{file} is empty: it must hold the token that clients send")
    return token
