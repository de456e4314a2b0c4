"""`rstar2 simulate`: compare scheduling policies on simulated engines."""

from __future__ import annotations

import argparse
import json

from rstar2_train.cli.common import Subparsers, add_command, fail, table_console
from rstar2_train.utils.options import user_path
from rstar2_train.utils.text import reason

NAME = "simulate"
EPILOG = """the settings, for example:
  engines: 20
  hardware: qwen3-14b-mi300x-tp2
  trajectories: {budget: 8192, meanTokens: 4000}
  policies:
  - {policy: Static, maxInFlight: 256}
  - {policy: Reserve}
  - {policy: Graded}
"""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = add_command(
        commands,
        NAME,
        main,
        help="compare scheduling policies on simulated engines",
        description=(
            "Simulate the rollouts of a step with the scheduler of the rollouts, on engines that a hardware model "
            "describes. Print step time, idle share, preemptions and tail per policy."
        ),
        epilog=EPILOG,
    )
    parser.add_argument("file", type=user_path, metavar="FILE", help="settings of the simulation (YAML)")
    parser.add_argument("--svg", type=user_path, metavar="FILE", help="draw the engines over time into this file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def main(args: argparse.Namespace) -> int:
    """Run the simulations; return the exit code."""
    from rich.table import Table

    from rstar2_train.rollout.trajectory_store import TrajectoryStoreError
    from rstar2_train.simulation.picture import draw
    from rstar2_train.simulation.run import SimulationResult, simulate
    from rstar2_train.simulation.settings import SimulationError, read_settings

    results: dict[str, SimulationResult] = {}
    try:
        settings = read_settings(args.file)
        hardware, steps = settings.engine_model(), settings.workload()
        for policy in settings.policies:
            results[policy.label] = simulate(
                steps,
                hardware,
                policy.make(),
                engines=settings.engines,
                max_staleness=settings.max_staleness,
                update_seconds=settings.update_seconds,
            )
    except (SimulationError, TrajectoryStoreError, ValueError) as error:
        return fail(NAME, str(error))
    if args.svg:
        try:
            args.svg.write_text(draw(results), encoding="utf-8")
        except OSError as error:
            return fail(NAME, f"{args.svg}: {reason(error)}")
    if args.json:
        print(json.dumps({label: result.figures() for label, result in results.items()}, indent=1))
        return 0
    count = sum(map(len, steps))
    table = Table(title=f"{count} trajectories in {len(steps)} steps on {settings.engines} engines")
    for column in ("policy", "seconds", "x bound", "s per step", "idle", "preempted", "recomputed", "moved", "tail s"):
        table.add_column(column, justify="left" if column == "policy" else "right", overflow="fold")
    for label, result in results.items():
        table.add_row(
            label,
            f"{result.makespan:.0f}",
            f"{result.makespan_over_bound:.3f}",
            f"{result.makespan / len(steps):.0f}",
            f"{result.idle_share:.1%}",
            f"{result.preempted_share:.2%}",
            f"{result.recomputed_tokens:,}",
            f"{result.displaced:,}",
            f"{result.tail_seconds:.0f}",
        )
    table_console().print(table)
    return 0
