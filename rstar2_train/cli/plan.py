"""`rstar2 plan`: what a manifest needs, and how long it takes, before anything starts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.cli.common import Subparsers, add_command, fail, table_console
from rstar2_train.utils.options import count, positive, user_path
from rstar2_train.utils.text import reason

if TYPE_CHECKING:
    from rich.console import Console

    from rstar2_train.api.job import AgenticRLJob
    from rstar2_train.capacity.hardware_profile import HardwareProfile
    from rstar2_train.capacity.model_shape import ModelShape
    from rstar2_train.plan.job_plan import JobPlan
    from rstar2_train.plan.shared_device import SharedDevice

NAME = "plan"
LEAST_LABEL = 28
"""Width of the labels of a table, unless they are longer or the terminal is narrow."""
DESCRIPTION = """Print the memory of trainer and engines, the time of a step and its parts, traffic, judge and storage
of a manifest, before anything starts. Where the manifest does not fit the hardware, print the field to change.

Times follow from a hardware profile and from a simulation of the rollouts with the real scheduler. The assumptions and
their sources are printed at the end."""
EPILOG = """examples:
  rstar2 plan examples/qwen3-14b.yaml                     on the default devices of spec.accelerator.vendor
  rstar2 plan examples/qwen3-14b.yaml --hardware h200     on other devices
  rstar2 plan examples/qwen3-14b.yaml --explain           with the arithmetic of each figure
  rstar2 plan job.yaml --gpus 1                           on one machine, whose only GPU is shared
  rstar2 plan job.yaml --model /models/my-model -o json   a model of your own, for scripts
  rstar2 plan examples/tiny.yaml --measure .rstar2/tiny   after a run, with the measured speed of this machine

Exit code: 0 if the manifest fits, 1 if it does not or cannot be read."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "memory, step time and GPU split of a manifest, before anything starts"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest (YAML)")
    add_plan_options(parser)
    parser.add_argument(
        "--measure",
        type=user_path,
        metavar="STATE",
        help="state folder of a run of this manifest, such as .rstar2/tiny: fit the hardware profile to its first RL "
        "stage, take the lengths of all stages from it, and print the measured step next to the plan",
    )
    parser.add_argument(
        "--gpus",
        type=count,
        metavar="N",
        help="plan for one machine with N GPUs, as `rstar2 run` divides them; trainer and engine may share one GPU",
    )
    parser.add_argument(
        "--save", type=user_path, metavar="FILE", help="with --measure: write the fitted profile, for --hardware FILE"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="(default: %(default)s)")


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `kubectl rstar2 plan` has too."""
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help="mi300x, mi325x, h100, h200, cpu, or a JSON file (default: mi300x, h100 or cpu, by the vendor)",
    )
    parser.add_argument("--model", type=user_path, metavar="FOLDER", help="folder with the config.json of the model")
    parser.add_argument(
        "--mean-tokens",
        type=positive,
        metavar="N",
        help="mean tokens that a trajectory samples (default: half of maxResponseTokens)",
    )
    parser.add_argument("--explain", action="store_true", help="print the arithmetic of each figure")


def main(args: argparse.Namespace) -> int:
    """Print the plan of a file; return the exit code."""
    from rstar2_train.api.loader import ManifestError, read_manifest

    if args.save is not None and args.measure is None:
        return fail(NAME, "--save needs --measure STATE: without it no profile is fitted")
    try:
        manifest = read_manifest(args.file)
    except ManifestError as error:
        return fail(NAME, str(error))
    return print_plan(manifest, args, name=str(args.file), folder=args.file.parent)


def print_plan(manifest: dict[str, Any], args: argparse.Namespace, *, name: str, folder: Path | None = None) -> int:
    """Print the plan of a manifest; return the exit code.

    `args`: those of `add_plan_options`, `output`, and for a file `measure`, `save` and `gpus`; `name`: of the manifest
    in messages; `folder`: that relative paths of the manifest start from.
    """
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.api.validation import check
    from rstar2_train.capacity.hardware_profile import DEFAULT_PROFILES, ProfileError, load_profile
    from rstar2_train.capacity.job_model import model_obstacles, weight_obstacles
    from rstar2_train.capacity.model_shape import UnknownModel, read_shape
    from rstar2_train.launch.local.devices import DevicesError
    from rstar2_train.plan.job_plan import plan_job
    from rstar2_train.plan.measured import NoFigures, fit_profile, read_figures, read_sft_figures

    try:
        job, issues = check(manifest)
        if job is None:
            return fail(NAME, "\n".join([f"{name} is not a valid job:", *map(str, issues)]))
        vendor = job.spec.accelerator.vendor
        profile = load_profile(args.hardware or DEFAULT_PROFILES[vendor])
        if (profile.vendor == "None") != (vendor == "None"):
            return fail(NAME, f"--hardware {args.hardware} does not suit spec.accelerator.vendor {vendor}")
        source = job.spec.model.source
        local = None if folder is None or "://" in source else folder / source
        if args.model is not None and not args.model.is_dir():
            return fail(NAME, f"--model {args.model}: no such folder. Pass the folder that has the model's config.json")
        origin = "spec.model.source" if args.model is None else "--model"
        model = args.model or (local if local is not None and local.is_dir() else None)
        if model is not None and (obstacles := model_obstacles(job, model)):
            return fail(NAME, f"{origin}: {model}/config.json: {'; '.join(obstacles)}")
        if model is not None and (obstacles := weight_obstacles(job, model)):
            return fail(NAME, f"{origin}: {'; '.join(obstacles)}")
        shape, inputs = read_shape(source, folder=model), {}
        if folder is not None and args.measure is not None:
            figures = read_figures(JobState(args.measure), job)
            sft = read_sft_figures(JobState(args.measure), job)
            profile = fit_profile(job, shape, profile, figures, sft)
            inputs = {stage: measured.inputs for stage, measured in sft.items()}
            inputs |= {stage: measured.inputs for stage, measured in figures.items()}
            if args.save is not None:
                args.save.write_text(profile.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
        shared = None if folder is None or args.gpus is None else _shared_device(job, shape, profile, gpus=args.gpus)
        plan = plan_job(job, shape, profile, mean_tokens=args.mean_tokens, measured=inputs, shared=shared)
    except (ProfileError, UnknownModel, NoFigures, DevicesError) as error:
        return fail(NAME, str(error))
    except OSError as error:
        return fail(NAME, f"{error.filename or args.save}: {reason(error)}")
    if args.output == "json":
        print(json.dumps(plan.as_json(), indent=1))
    else:
        show(plan, table_console(), explain=args.explain)
    return 0 if plan.fits else 1


def _shared_device(job: AgenticRLJob, shape: ModelShape, profile: HardwareProfile, *, gpus: int) -> SharedDevice | None:
    """Return how trainer and engine share the only GPU of a machine; None if each has GPUs of its own.

    Raises DevicesError if the machine has too few GPUs.
    """
    from rstar2_train.launch.local.devices import Device, DevicesError, assign
    from rstar2_train.plan.shared_device import SharedDevice

    if job.spec.accelerator.vendor == "None":
        raise DevicesError("--gpus: spec.accelerator.vendor is None, so the job uses no GPU")
    devices = [Device(str(number), memory_bytes=profile.memory_bytes) for number in range(gpus)]
    assigned = assign(job, devices, shape=shape)
    if assigned.trainer_share is None or assigned.engine_share is None:
        return None
    return SharedDevice(assigned.time_shared, assigned.trainer_share, assigned.engine_share)


def show(plan: JobPlan, console: Console, *, explain: bool) -> None:
    """Print a plan: one table per section with a column per stage, then issues and assumptions."""
    from rich.text import Text

    from rstar2_train.cli.tables import Column, ColumnGroups

    console.print(Text(f"{plan.name}: {plan.summary}", style="bold"))
    most_rows_first = sorted(plan.stages.values(), key=len, reverse=True)  # their order is that of the tables
    for section in dict.fromkeys(row.section for rows in most_rows_first for row in rows):
        by_stage = {
            stage: {row.key: row for row in rows if row.section == section} for stage, rows in plan.stages.items()
        }
        stages = [stage for stage, rows in by_stage.items() if rows]
        labels = {row.key: row.label for rows in most_rows_first for row in rows if row.section == section}
        columns = [
            Column(stage, ["" if (row := by_stage[stage].get(key)) is None else row.text for key in labels])
            for stage in stages
        ]
        names = Column("", [label.ljust(LEAST_LABEL) for label in labels.values()], is_text=True)
        console.print()
        console.print(ColumnGroups(section, names, columns, is_plain=True))
    if explain:
        _explain(plan, console)
    console.print(Text("\nIssues" if plan.issues else "\nNo issues: the manifest fits.", style="bold"))
    for issue in plan.issues:
        console.print(Text(f"  {issue}", style="yellow" if issue.warning else "red"))
    console.print(Text("\nAssumptions", style="bold"))
    for text, source in plan.assumptions:
        console.print(Text(f"  {text} ({source})"))


def _explain(plan: JobPlan, console: Console) -> None:
    """Print the arithmetic of each figure; a figure that equals the stage before is not repeated."""
    from rich.text import Text

    printed = set()
    for stage, rows in plan.stages.items():
        console.print(Text(f"\nArithmetic of {stage}", style="bold"))
        for row in rows:
            if row.arithmetic and (row.key, row.value, row.arithmetic) not in printed:
                printed.add((row.key, row.value, row.arithmetic))
                console.print(Text(f"  {row.label}: {row.text} = {row.arithmetic}"))
