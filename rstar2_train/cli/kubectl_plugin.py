"""`kubectl rstar2`: jobs in a cluster. kubectl runs this program as its plugin, because it is named kubectl-rstar2.

All requests go through kubectl, with its context and rights. On a terminal the output is a table with colours,
otherwise JSON; `-o table` and `-o json` select one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rstar2_train.cli import cluster_verify, cluster_view
from rstar2_train.cli.common import INTERRUPTED, table_console
from rstar2_train.cli.guard import run_guarded
from rstar2_train.cli.job_timeline import (
    ROLE_LABEL,
    STAGE_LABEL,
    Timeline,
    checkpoints,
    engine_figures,
    event_rows,
    timeline,
)
from rstar2_train.cli.kubectl import JOB_LABEL, KIND, Kubectl, KubectlFailed
from rstar2_train.cli.plan import add_plan_options, print_plan
from rstar2_train.utils.terminal import buffer_streams
from rstar2_train.utils.text import printable

PROGRAM = "kubectl rstar2"
COMMANDS = (
    *("status", "suspend", "resume", "logs", "checkpoints", "events"),
    *("top", "view", "verify", "plan", "completion"),
)
ROLES = ("trainer", "rollout", "teacher", "judge", "executor", "redis", "environment", "agent", "prepare", "report")
WATCH_SECONDS = 2.0
SAMPLE_SECONDS = 2.0
"""Time between the two samples of `top`."""
COLOURS = {
    **dict.fromkeys(("Succeeded", "Running"), "green"),
    **dict.fromkeys(("Pending", "Preparing", "Suspending", "Finalizing", "Deleting"), "yellow"),
    **{"Failed": "red", "Suspended": "blue"},
}
METRICS = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/metrics', timeout=5).read().decode())"
"""Program that prints an engine's metrics inside its pod; the NetworkPolicies admit no other way."""
COMPLETE = """_kubectl_rstar2() {{
  local words="{words}"
  {body}
}}
{register}
"""
SHELLS = {
    "bash": (
        'if [ "$COMP_CWORD" = 1 ]; then COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[1]}")); else '
        'COMPREPLY=($(compgen -W "$(kubectl get agenticrljobs -o name 2>/dev/null | cut -d/ -f2)" -- '
        '"${COMP_WORDS[COMP_CWORD]}")); fi',
        "complete -F _kubectl_rstar2 kubectl-rstar2",
    ),
    "zsh": (
        "if (( CURRENT == 2 )); then compadd -- ${=words}; else "
        "compadd -- $(kubectl get agenticrljobs -o name 2>/dev/null | cut -d/ -f2); fi",
        "compdef _kubectl_rstar2 kubectl-rstar2",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `kubectl-rstar2`. Return the exit code."""
    if argv is None:
        buffer_streams()
    return run_guarded(PROGRAM, lambda: _call(argv))


def _call(argv: Sequence[str] | None) -> int:
    options = _parser().parse_args(argv)
    if options.command == "completion":
        print(completion(options.shell), end="")
        return 0
    flags = [f"--{name}={value}" for name in ("namespace", "context") if (value := getattr(options, name))]
    run: Callable[[Kubectl, argparse.Namespace], int] = options.run
    try:
        return run(Kubectl(flags), options)
    except KubectlFailed as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def completion(shell: str) -> str:
    """Return the completion script of a shell. Pure."""
    body, register = SHELLS[shell]
    return COMPLETE.format(words=" ".join(COMMANDS), body=body, register=register)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Show and control AgenticRLJobs of a cluster.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[Kubectl, argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.add_argument("-n", "--namespace", default="", help="namespace (default: the one of the context)")
        command.add_argument("--context", default="", help="context of the kubeconfig (default: the current one)")
        command.set_defaults(run=run)
        return command

    status = add("status", _status, "show the state of a job, the reason of each wait, and the next action")
    status.add_argument("job", nargs="?", help="name of a job (default: all jobs of the namespace)")
    status.add_argument("-A", "--all-namespaces", action="store_true", help="jobs of all namespaces")
    status.add_argument("-w", "--watch", action="store_true", help="show it again when it changes")
    for name, text in (
        ("suspend", "write a checkpoint and release the pods of a job"),
        ("resume", "continue a suspended job from its last checkpoint"),
    ):
        add(name, _suspend, text).add_argument("job", help="name of the job")
    logs = add("logs", _logs, "print the logs of a job's pods")
    logs.add_argument("job", help="name of the job")
    logs.add_argument("-r", "--role", choices=ROLES, default="trainer", help="role (default: trainer)")
    logs.add_argument("-s", "--stage", help="stage; only pods of the role trainer have one")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines until interrupted")
    logs.add_argument("--tail", type=int, default=200, metavar="N", help="lines per pod (default: 200; -1: all)")
    for name, run, text in (
        ("checkpoints", _checkpoints, "list the last checkpoint of each stage"),
        ("events", _events, "list the Events of a job"),
        ("top", _top, "show tokens per second, KV cache use and idle share of each engine, and the last step"),
    ):
        add(name, run, text).add_argument("job", help="name of the job")
    view = add("view", cluster_view.view, cluster_view.HELP)
    view.add_argument("job", help="name of the job")
    cluster_view.add_options(view)
    verify = add("verify", cluster_verify.verify, cluster_verify.HELP)
    verify.add_argument("job", help="name of the job")
    cluster_verify.add_options(verify)
    plan = add("plan", _plan, "print memory, step time and GPU split of a job, as rstar2 plan does")
    plan.add_argument("job", help="name of the job")
    add_plan_options(plan)
    for command in ("status", "checkpoints", "events", "top", "plan"):
        commands.choices[command].add_argument(
            "-o", "--output", choices=("table", "json"), help="format (default: table on a terminal, otherwise json)"
        )
    shells = commands.add_parser("completion", help="print the completion script of a shell")
    shells.add_argument("shell", choices=sorted(SHELLS))
    return parser


def _as_table(options: argparse.Namespace) -> bool:
    return bool(options.output == "table" or (options.output is None and sys.stdout.isatty()))


_HEADERS = {
    "tokensPerSecond": "tokens/s",
    "kvUse": "KV cache",
    "idleShare": "idle",
}
"""Name of a figure -> header of its column."""


def _print_rows(options: argparse.Namespace, rows: list[dict[str, Any]], empty: str) -> None:
    """Print rows with the same keys as a table, or as JSON."""
    if not _as_table(options):
        print(json.dumps(rows, indent=2))
    elif rows:
        table = Table(box=None, header_style="bold")
        for name in rows[0]:
            table.add_column(_HEADERS.get(name, name).upper(), overflow="fold")
        for row in rows:
            table.add_row(*(_cell(str(value)) for value in row.values()))
        table_console().print(table)
    else:
        print(empty)


def _status(kubectl: Kubectl, options: argparse.Namespace) -> int:
    last = None
    while True:
        timelines = _timelines(kubectl, options.job, everywhere=options.all_namespaces)
        if timelines != last:
            if not _as_table(options):
                values = [timeline.as_json() for timeline in timelines]
                print(json.dumps(values[0] if options.job else values, indent=None if options.watch else 2), flush=True)
            else:
                console = table_console()
                if options.watch and sys.stdout.isatty():
                    console.clear()
                print_timelines(console, timelines, details=bool(options.job), everywhere=options.all_namespaces)
        if not options.watch:
            return 0
        last = timelines
        time.sleep(WATCH_SECONDS)


def _timelines(kubectl: Kubectl, name: str | None, *, everywhere: bool) -> list[Timeline]:
    if everywhere and name is not None:
        raise KubectlFailed("a job has one namespace: use -n NAMESPACE with its name, or -A without a name")
    if name is None:
        return [timeline(job) for job in kubectl.get(KIND, *(["--all-namespaces"] if everywhere else []))]
    job, pods = kubectl.get(KIND, name), kubectl.get("pods", "-l", f"{JOB_LABEL}={name}")
    return [timeline(job, pods, reports=_reports(kubectl, name))]


def _reports(kubectl: Kubectl, name: str) -> dict[str, str]:
    """Return the reports of a job's orchestrator; none if the job has none yet, or the user may not read them."""
    try:
        data: dict[str, str] = kubectl.get("configmaps", f"{name}-progress").get("data") or {}
    except KubectlFailed:
        return {}
    return data


def print_timelines(
    console: Console, timelines: Sequence[Timeline], *, details: bool, everywhere: bool = False
) -> None:
    """Print the jobs: a table, or with `details` all of each timeline. `everywhere`: they are of all namespaces."""
    if not details:
        table = Table(box=None, header_style="bold")
        for name in (*(["NAMESPACE"] if everywhere else []), "NAME", "PHASE", "PROGRESS", "RESTARTS", "MESSAGE"):
            table.add_column(name, overflow="fold")
        for timeline in timelines:
            namespace = [timeline.namespace] if everywhere else []
            table.add_row(
                *namespace,
                timeline.name,
                _coloured(timeline.phase),
                timeline.progress,
                str(timeline.restarts),
                _cell(timeline.message),
            )
        console.print(table if timelines else f"No AgenticRLJob in {'any' if everywhere else 'this'} namespace.")
        return
    for timeline in timelines:
        left = f", {timeline.remaining} left in the stage" if timeline.remaining else ""
        console.print(
            f"[bold]{timeline.namespace}/{timeline.name}[/bold]  {_coloured(timeline.phase)}  {timeline.progress}{left}"
        )
        console.print(timeline.message, markup=False)
        for title, lines in (("Waits for", timeline.waits_for), ("Problems", timeline.problems)):
            if lines:
                console.print(f"[bold]{title}[/bold]")
            for line in lines:
                console.print(f"  {line}", markup=False)
        stages = Table(box=None, header_style="bold")
        for name in ("STAGE", "TYPE", "PHASE", "STEP", "ATTEMPTS", "REWARD"):
            stages.add_column(name, overflow="fold")
        for row in timeline.stages:
            stages.add_row(row.name, row.type, _coloured(row.phase), row.step, str(row.attempts), row.reward)
        console.print(stages)
        roles = Table(box=None, header_style="bold")
        for name in ("ROLE", "READY", "NODES"):
            roles.add_column(name, overflow="fold")
        for role in timeline.roles:
            roles.add_row(role.role, f"{role.ready}/{role.desired}", ", ".join(role.nodes))
        console.print(roles)
        console.print("[bold]What to do[/bold]")
        console.print(f"  {timeline.next}", markup=False)


def _cell(text: str) -> Text:
    """Return the words of a cluster as a cell: brackets in them are no markup."""
    return Text(printable(text))


def _coloured(phase: str) -> str:
    colour = COLOURS.get(phase)
    return f"[{colour}]{phase}[/{colour}]" if colour else phase


def _suspend(kubectl: Kubectl, options: argparse.Namespace) -> int:
    patch = json.dumps({"spec": {"suspend": options.command == "suspend"}})
    print(kubectl.text("patch", KIND, options.job, "--type=merge", "-p", patch), end="")
    return 0


def _logs(kubectl: Kubectl, options: argparse.Namespace) -> int:
    selector = f"{JOB_LABEL}={options.job},{ROLE_LABEL}={options.role}"
    selector += f",{STAGE_LABEL}={options.stage}" if options.stage else ""
    arguments = ["logs", "-l", selector, "--prefix", "--all-containers", f"--tail={options.tail}"]
    if options.follow:
        arguments += ["--follow", "--max-log-requests=64"]
    return kubectl.in_terminal(*arguments)


def _checkpoints(kubectl: Kubectl, options: argparse.Namespace) -> int:
    _print_rows(options, checkpoints(kubectl.get(KIND, options.job)), f"{options.job} has no checkpoint yet.")
    return 0


def _events(kubectl: Kubectl, options: argparse.Namespace) -> int:
    selector = f"--field-selector=involvedObject.kind=AgenticRLJob,involvedObject.name={options.job}"
    _print_rows(options, event_rows(kubectl.get("events", selector)), f"{options.job} has no Events.")
    return 0


def _top(kubectl: Kubectl, options: argparse.Namespace) -> int:
    status = kubectl.get(KIND, options.job).get("status") or {}
    pods = kubectl.get("pods", "-l", f"{JOB_LABEL}={options.job},{ROLE_LABEL}=rollout")
    names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    first, start = _metrics(kubectl, names), time.monotonic()
    time.sleep(SAMPLE_SECONDS)
    seconds, second = time.monotonic() - start, _metrics(kubectl, names)
    engines = [
        {"engine": name, **engine_figures(first[name], second[name], seconds)} for name in first if name in second
    ]
    stage: dict[str, Any] = next((row for row in status.get("stages") or () if row["name"] == status.get("stage")), {})
    if not _as_table(options):
        print(
            json.dumps({"engines": engines, "step": stage.get("step"), "trainer": stage.get("metrics") or {}}, indent=2)
        )
        return 0
    _print_rows(options, engines, "No engine answers.")
    _print_rows(
        options, [{"figure": name, "last step": value} for name, value in (stage.get("metrics") or {}).items()], ""
    )
    return 0


def _plan(kubectl: Kubectl, options: argparse.Namespace) -> int:
    options.output = "table" if _as_table(options) else "json"
    return print_plan(kubectl.get(KIND, options.job), options, name=options.job)


def _metrics(kubectl: Kubectl, names: Sequence[str]) -> dict[str, str]:
    """Return the pages of the engines that answer."""
    pages = {}
    for name in names:
        try:
            pages[name] = kubectl.text("exec", name, "--", "python3", "-c", METRICS)
        except KubectlFailed as error:
            print(f"{PROGRAM}: {name}: {error}", file=sys.stderr)
    return pages


if __name__ == "__main__":
    sys.exit(main())
