"""`rstar2 serve`: serve a model with its tool behind an OpenAI-compatible endpoint. The work is in `serving/`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from rstar2_train.cli.common import Subparsers, add_base_option, add_command, add_state_option, fail
from rstar2_train.tools.schema import TOOLS
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN, SERVE_TOKEN, read_secret
from rstar2_train.utils.options import ACCELERATORS, count, port, seconds, user_path

NAME = "serve"
PORT = 8000
DESCRIPTION = """Serve a model with its tool: engine, judge and Redis on this machine, behind an OpenAI-compatible
endpoint. With --endpoint or --judge, the command waits for a running engine or judge and uses it instead of starting
one."""
EPILOG = f"""MODEL is a model folder, JOB (its last trained model), JOB/STAGE, or an adapter in the form of peft, which
is merged with its base into the folder of all jobs. A manifest with storage.url in place of JOB names the job in its
bucket, whose newest state is downloaded. The model of a job is served with the job's system prompt, prompt
prefix, tool and limits.

examples:
  rstar2 serve tiny                            the model of the job `tiny`, on 127.0.0.1:{PORT}, until Ctrl-C
  rstar2 serve tiny/rl-1 --port 0              the model of its stage rl-1, on a free port
  rstar2 serve my-job.yaml/rl-1                the same of a job in a bucket
  rstar2 serve ./Qwen3-14B --context 16384
  rstar2 serve ./Qwen3-14B --endpoint http://engine:8000 --judge http://judge:8080     use running services
  {SERVE_TOKEN}=... rstar2 serve tiny --host 0.0.0.0      for other machines, which need the token

then, with any OpenAI client:
  curl -N http://127.0.0.1:{PORT}/v1/chat/completions -H 'Content-Type: application/json' -d '
    {{"model": "tiny/rl-3", "stream": true, "messages": [{{"role": "user", "content": "Find 6 times 7."}}]}}'

The token is read from {SERVE_TOKEN}, or from the file that {SERVE_TOKEN}_FILE or --token-file names. The
tokens of a running engine and judge are read from {ENGINE_TOKEN} and {JUDGE_TOKEN}, or from files in the
same way. For a cluster see examples/serve.yaml."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "serve a model with its tool behind an OpenAI-compatible endpoint"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="model folder, JOB, JOB/STAGE, MANIFEST, or adapter")
    add_base_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port, default=PORT, metavar="PORT", help="port; 0 selects a free port (default: %(default)s)"
    )
    parser.add_argument(
        "--token-file", type=user_path, metavar="FILE", help="file with the token that clients must send"
    )
    parser.add_argument("--insecure", action="store_true", help="allow other machines to connect without a token")
    parser.add_argument("--endpoint", default="", metavar="URL", help="a running vLLM server of the model")
    parser.add_argument("--judge", default="", metavar="URL", help="a running judge (`rstar2 judge serve`)")
    parser.add_argument(
        "--context",
        type=count,
        metavar="N",
        help="limit of prompt and answer together in tokens (default: the model's, or 32768)",
    )
    parser.add_argument(
        "--max-turns",
        type=count,
        default=30,
        metavar="N",
        help="limit of assistant turns per answer (default: %(default)s)",
    )
    parser.add_argument("--system-prompt", metavar="TEXT", help="replaces the job's or the built-in system prompt")
    parser.add_argument("--prompt-prefix", metavar="TEXT", help="text before the first question; may be empty")
    parser.add_argument("--tool", choices=list(TOOLS), help="tool of the model (default: the job's)")
    parser.add_argument(
        "--executors", type=count, metavar="N", help="number of sandboxes of the judge (default: the job's, or 2)"
    )
    parser.add_argument("--accelerator", choices=tuple(ACCELERATORS), help="accelerator (default: auto-detect)")
    parser.add_argument(
        "--judge-patience",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="time that a tool call waits for an unreachable judge before it fails (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=count,
        default=5,
        metavar="SECONDS",
        help="shutdown grace period for in-flight answers (default: %(default)s)",
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Serve the model; return the exit code."""
    from rstar2_train.api.roles import AcceleratorSpec
    from rstar2_train.launch.local.devices import vendor
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path
    from rstar2_train.launch.local.services import RunningServices
    from rstar2_train.rollout.chat_format import ChatFormatError
    from rstar2_train.serving.model import adjusted, find
    from rstar2_train.serving.server import EndpointSettings
    from rstar2_train.serving.stack import run
    from rstar2_train.tools.mcp_session import ServerLost
    from rstar2_train.utils.supervisor import ChildFailed, StopRequested

    console = Console(stderr=True)

    def notify(message: str) -> None:
        console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)

    def on_ready(url: str) -> None:
        console.print(f"{model.name} is served at {url}/v1. Press Ctrl-C to stop.", highlight=False, markup=False)
        print(json.dumps({"event": "ready", "url": url, "model": model.name}), flush=True)

    add_tools_to_path()
    if args.endpoint and args.accelerator:
        return fail(NAME, "--accelerator has no effect with --endpoint. Remove one of them.")
    if args.judge and args.executors:
        return fail(NAME, "--executors has no effect with --judge. Remove one of them.")
    try:
        model = adjusted(
            find(args.model, jobs=args.state, base=args.base, notify=notify),
            context=args.context,
            system_prompt=args.system_prompt,
            prompt_prefix=args.prompt_prefix,
            tool=args.tool,
            accelerator=AcceleratorSpec.from_vendor(ACCELERATORS[args.accelerator] if args.accelerator else vendor()),
            executors=args.executors,
        )
        endpoint = EndpointSettings(
            host=args.host,
            port=args.port,
            token=_read_token(args.token_file) if args.token_file else read_secret(SERVE_TOKEN),
            insecure=args.insecure,
            max_turns=args.max_turns,
            judge_patience=args.judge_patience,
            grace=args.grace,
        )
        external = RunningServices.from_options(endpoint=args.endpoint, judge=args.judge)
        local = [part for part, url in (("engine", external.engine), ("judge and Redis", external.judge)) if not url]
        console.print(
            f"Starting {', '.join(local) or 'the endpoint'} for {model.folder} ...", style="dim", highlight=False
        )
        run(model, endpoint, external, notify=notify, on_ready=on_ready)
    except StopRequested:
        return 0
    except (ChatFormatError, PreflightError, ChildFailed, ServerLost, ValueError, OSError) as error:
        return fail(NAME, str(error))
    return 0


def _read_token(file: Path) -> str:
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise ValueError(f"{file} is empty. Write the token that clients must send into it.")
    return token
