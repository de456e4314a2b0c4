"""Entry point of the `rstar2` command: assembles the subcommands, calls one, returns its exit code.

A subcommand is the module of its name, which is imported only if the command line names it or asks for all of them.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

from rstar2_train import __version__
from rstar2_train.cli.common import HelpFormatter
from rstar2_train.cli.guard import run_guarded
from rstar2_train.utils.open_files import raise_open_file_limit
from rstar2_train.utils.terminal import ignore_closed_terminal

COMMANDS = (
    *("demo", "doctor", "validate", "plan", "run", "fetch", "publish", "report", "track", "view", "analyse", "eval"),
    *("filter", "verify", "serve", "chat", "export", "data", "env", "init", "judge", "simulate"),
)
"""Names of the subcommands and of their modules."""
USAGE = 2
"""Exit code of argparse for wrong arguments."""
EPILOG = """examples:
  rstar2 demo                            train a tiny model through its whole curriculum, in minutes
  rstar2 doctor                          what this machine lacks, with remedies; --cluster: what a cluster lacks
  rstar2 validate examples/tiny.yaml     check a manifest; print all its errors
  rstar2 plan examples/qwen3-14b.yaml    memory, step time and GPU split, before anything starts
  rstar2 run examples/tiny.yaml          run the curriculum on this machine; Ctrl-C suspends, run again to resume
  rstar2 fetch my-job.yaml               download the state of a job from its bucket
  rstar2 publish my-job.yaml             publish the state of a job in its bucket, such as that of a claim
  rstar2 report tiny                     held-out results before and after each stage
  rstar2 view tiny                       follow a running job in a browser: curves, newest trajectories
  rstar2 analyse tiny                    pages on its trajectories: plots, what RoC kept, entropy, a viewer
  rstar2 eval --help                     measure a model on benchmark files: pass@1, pass@k, length, tool use
  rstar2 verify --known 1/2 --answer .5  repeat and explain one verdict; also of a stored rollout
  rstar2 filter --help                   select the problems that a model does not always solve
  rstar2 chat --model tiny               chat with the trained model, which uses its tool
  rstar2 serve tiny                      serve it behind an OpenAI-compatible endpoint
  rstar2 export tiny OUT                 write its adapter for peft and vLLM, or with --merge its whole model
  rstar2 data prepare --help             convert public datasets into the files that a manifest names
  rstar2 init --template sql DIR         make a working folder: manifest, rows, tool, checker
  rstar2 env check FILE                  run one row through tools and reward; print trained and masked tokens
  rstar2 judge serve                     run the Code Judge alone, for any client
  rstar2 simulate --help                 compare scheduling policies on simulated engines
"""


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the subcommands of some names."""
    top = argparse.ArgumentParser(
        prog="rstar2",
        description="Train tool-using language models with GRPO-RoC, from one AgenticRLJob manifest.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"rstar2 {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        import_module(f"rstar2_train.cli.{name}").add_arguments(commands)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if argv is None:
        ignore_closed_terminal()
        argv = sys.argv[1:]
    name = shlex.join(["rstar2", *argv[:1]])
    return run_guarded(name, lambda: _call(argv))


def _call(argv: Sequence[str]) -> int:
    """Parse the command line, call its subcommand and return the exit code. Raises SystemExit, as argparse does."""
    named = argv[:1] if argv and argv[0] in COMMANDS else COMMANDS
    args, unknown = parser(named).parse_known_args(argv)
    if unknown:
        hint = f"`rstar2 {args.command} --help` lists its options."
        print(f"rstar2 {args.command}: unknown arguments: {shlex.join(unknown)}. {hint}", file=sys.stderr)
        return USAGE
    raise_open_file_limit()
    code: int = args.main(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
