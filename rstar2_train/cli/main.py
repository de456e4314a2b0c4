"""The `rstar2` command: manifests, reports, tracking, analysis, evaluation, filter, serving, data, the judge."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from rstar2_train import __version__
from rstar2_train.cli import analyse as analysis_commands
from rstar2_train.cli import data as data_commands
from rstar2_train.cli import eval as eval_commands
from rstar2_train.cli import filter as filter_commands
from rstar2_train.cli import serve as serve_commands
from rstar2_train.cli.judge import add_arguments
from rstar2_train.utils.open_files import raise_open_files
from rstar2_train.utils.terminal import outlive_terminal

EPILOG = """examples:
  rstar2 validate examples/tiny.yaml     every problem of a manifest, in one pass
  rstar2 run examples/tiny.yaml          the whole curriculum on this machine; Ctrl-C suspends, run again to go on
  rstar2 report tiny                     before and after each stage
  rstar2 analyse tiny                    pages on its trajectories: plots, what RoC kept, uncertain tokens, a viewer
  rstar2 eval --help                     a model on benchmark files: pass@1, pass@k, length, tool use
  rstar2 filter --help                   the problems that a model does not always solve, to train on
  rstar2 chat --model tiny               talk to what the job has trained, with its tool
  rstar2 serve tiny                      the same behind an OpenAI-compatible endpoint
  rstar2 data prepare --help             from public datasets to the files that a manifest names
  rstar2 judge serve                     the Code Judge by itself, for any client
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="rstar2",
        description="Train tool-using language models with GRPO-RoC, from one AgenticRLJob manifest.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"rstar2 {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    validate = commands.add_parser("validate", help="check a manifest: field, value, what is allowed")
    validate.add_argument("file", type=Path, help="an AgenticRLJob manifest (YAML)")

    run = commands.add_parser("run", help="run a manifest on this machine, or go on with a run that stopped")
    run.add_argument("file", type=Path, help="an AgenticRLJob manifest (YAML)")
    _state(run)

    report = commands.add_parser("report", help="print the table of stages of a job")
    report.add_argument("job", help="name of the job, as in its manifest")
    report.add_argument("--json", action="store_true", help="as JSON, for scripts")
    _state(report)

    track = commands.add_parser("track", help="send what MLflow has not taken yet")
    track.add_argument("job", help="name of the job")
    track.add_argument("--timeout", type=float, default=120, help="seconds to try for (default: %(default)s)")
    _state(track)

    analyse = commands.add_parser("analyse", help="pages on a job's trajectories: plots, entropy study, viewer")
    analysis_commands.add_arguments(analyse)
    _state(analyse)

    evaluation = commands.add_parser("eval", help="measure a model on benchmark files; resumable")
    eval_commands.add_arguments(evaluation)
    _state(evaluation)

    filtering = commands.add_parser("filter", help="drop the problems that a model always solves; resumable")
    filter_commands.add_arguments(filtering)
    _state(filtering)

    serve = commands.add_parser("serve", help="a model with its tool behind an OpenAI-compatible endpoint")
    serve_commands.add_serve_arguments(serve)
    _state(serve)

    chat = commands.add_parser("chat", help="talk to a served model in the terminal")
    serve_commands.add_chat_arguments(chat)
    _state(chat)

    data_commands.add_arguments(commands.add_parser("data", help="data for training: prepare, inspect, decontaminate"))
    add_arguments(commands.add_parser("judge", help="the Code Judge by itself: serve, run, bench"))
    return top


def _state(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state", type=Path, default=Path(".rstar2"), help="folder of all jobs' state (default: %(default)s)"
    )


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    if argv is None:
        outlive_terminal()
    arguments = parser().parse_args(argv)
    raise_open_files()
    handler = {
        "validate": _validate,
        "run": _run,
        "report": _report,
        "track": _track,
        "analyse": analysis_commands.main,
        "eval": eval_commands.main,
        "filter": filter_commands.main,
        "serve": _serve,
        "chat": serve_commands.chat_main,
        "judge": _judge,
        "data": _data,
    }
    return handler[arguments.command](arguments)


def _validate(arguments: argparse.Namespace) -> int:
    from rstar2_train.api.loader import ManifestError, read_manifest
    from rstar2_train.api.validation import check

    try:
        job, problems = check(read_manifest(arguments.file))
    except ManifestError as error:
        return _fail(str(error))
    for problem in problems:
        print(problem, file=sys.stdout if problem.warning else sys.stderr)
    if job is None:
        count = sum(not problem.warning for problem in problems)
        return _fail(f"{arguments.file}: {count} error{'s' if count > 1 else ''}")
    print(f"{arguments.file}: valid ({len(job.spec.stages)} stages: {', '.join(s.name for s in job.spec.stages)})")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path, run

    add_tools_to_path()
    try:
        return run(arguments.file, state_root=arguments.state, console=_console())
    except PreflightError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or arguments.state}: {error.strerror}")


def _report(arguments: argparse.Namespace) -> int:
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.evaluation.job_report import build_report, slice_table, stage_table

    state = JobState(arguments.state / arguments.job)
    if not state.job_file.exists():
        return _fail(f"{state.root}: no such job; run it first, or name the folder of all jobs with --state")
    report = build_report(state.root, state.job(), seconds=state.seconds())
    if arguments.json:
        print(json.dumps(report.model_dump(mode="json"), indent=1))
        return 0
    console = _console()
    console.print(stage_table(report, width=console.width))
    slices = slice_table(report)
    if slices is not None:
        console.print(slices)
    return 0


def _track(arguments: argparse.Namespace) -> int:
    from rstar2_train.tracking.shipper import ship

    state = arguments.state / arguments.job
    if not state.exists():
        return _fail(f"{state}: no such job; name the folder of all jobs with --state")
    shipped = ship(state, timeout=arguments.timeout)
    if shipped.complete:
        print(shipped.rejection_message or "everything is in MLflow")
        return 0
    why = shipped.error or f"{arguments.timeout:g} s were not enough; run it again, or give more with --timeout"
    return _fail(f"{shipped.pending} bytes of the journal are still unsent: {why}")


def _judge(arguments: argparse.Namespace) -> int:
    from rstar2_train.cli.judge import main
    from rstar2_train.launch.local.run import add_tools_to_path

    add_tools_to_path()
    return main(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    from rstar2_train.launch.local.run import add_tools_to_path

    add_tools_to_path()
    return serve_commands.serve_main(arguments)


def _data(arguments: argparse.Namespace) -> int:
    return data_commands.main(arguments)


def _console() -> Console:
    """The terminal, or for a file or a pipe a page that is wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
