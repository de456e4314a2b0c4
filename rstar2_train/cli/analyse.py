"""`rstar2 analyse`: write pages on a job's trajectories. The work is in `analysis/analyse.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rstar2_train.cli.common import (
    INTERRUPTED,
    Subparsers,
    add_command,
    add_state_option,
    fail,
    job_state,
    progress_bar,
    unknown_job,
)
from rstar2_train.utils.options import count, user_path
from rstar2_train.utils.text import reason

NAME = "analyse"
DESCRIPTION = """Write pages on a job's trajectories: plots over its stages, the rollouts that Resample-on-Correct kept
and dropped, the uncertainty of the model (the paper's entropy study), and a viewer of trajectories, token by token."""
EPILOG = """examples:
  rstar2 analyse tiny                          report, plots and viewer in .rstar2/tiny/analysis/index.html
  rstar2 analyse tiny --score rl-3             add the entropies of 64 trajectories, by the model of stage rl-3
  rstar2 analyse tiny --stage rl-1 --limit 20000 --out rl-1-pages
  rstar2 analyse tiny --score ./checkpoint --sample 512
  rstar2 analyse my-job.yaml                   of a job in a bucket, whose newest state is downloaded

Reads the trajectories that are stored now; the job may still run. The pages need no server: open index.html from
disk, or copy the folder. Without --score, tokens are coloured by surprisal, the -log p of the sampled token. Entropy
needs the whole distribution: one forward pass of the model per trajectory, on an accelerator if torch finds one. Scores
are saved in the job's state, so that a stopped analysis resumes."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "write pages on a job's trajectories: plots, entropy study, viewer"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("job", metavar="JOB", help="name of the job, or its manifest with storage.url")
    parser.add_argument(
        "--out", type=user_path, metavar="FOLDER", help="folder to write (default: analysis/ in the job's state)"
    )
    parser.add_argument(
        "--stage", action="append", default=[], metavar="STAGE", help="only this stage; may be repeated"
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=4000,
        metavar="N",
        help="approximate number of trajectories in the viewer; groups are not split (default: %(default)s)",
    )
    parser.add_argument(
        "--score", default="", metavar="MODEL", help="compute entropies with this model: a stage or a model folder"
    )
    parser.add_argument(
        "--sample",
        type=count,
        default=64,
        help="trajectories that --score uses (default: %(default)s, the paper's)",
    )
    parser.add_argument(
        "--tokenizer", type=user_path, metavar="FOLDER", help="folder with tokenizer.json (default: the job's)"
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Analyse the job; return the exit code."""
    from rstar2_train.analysis.analyse import AnalysisRequest, analyse
    from rstar2_train.analysis.sources import AnalysisError
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.rollout.trajectory_store import TrajectoryStoreError

    try:
        state = job_state(args.job, args.state)
    except PreflightError as error:
        return fail(NAME, str(error))
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    request = AnalysisRequest(
        out=args.out or state.analysis,
        stages=args.stage,
        limit=args.limit,
        model=args.score,
        sample=args.sample,
        tokenizer=args.tokenizer,
    )
    try:
        with progress_bar() as bar:

            def start(total: int) -> Callable[[], None]:
                task = bar.add_task("trajectories", total=total)
                return lambda: bar.advance(task)

            summary = analyse(state, request, start)
    except (AnalysisError, TrajectoryStoreError) as error:
        return fail(NAME, str(error))
    except OSError as error:
        return fail(NAME, f"{error.filename or request.out}: {reason(error)}")
    except KeyboardInterrupt:
        fail(NAME, "stopped. The pages are unchanged; finished scores are saved.")
        return INTERRUPTED
    page = request.out / "index.html"
    print(f"{summary['trajectories']} trajectories, {summary['shown']} of them in the viewer: {page}")
    return 0
