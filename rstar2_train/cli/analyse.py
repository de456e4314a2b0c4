"""`rstar2 analyse JOB`: its arguments, and how it ends. The flow itself is in `analyse.py`, imported when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from rstar2_train.utils.options import count

DESCRIPTION = """What a job's trajectories show: plots over its stages, what Resample-on-Correct kept and dropped,
where the model was uncertain (the paper's entropy study), and a viewer of trajectories, token by token."""
EPILOG = """examples:
  rstar2 analyse tiny                          report, plots and viewer in .rstar2/tiny/analysis/index.html
  rstar2 analyse tiny --score rl-3             and the entropies of 64 trajectories, by the model of stage rl-3
  rstar2 analyse tiny --stage rl-1 --limit 20000 --out rl-1-pages
  rstar2 analyse tiny --score ./checkpoint --sample 512

Reads the trajectories that the job has stored so far; it may still be running. The pages need no server: open
index.html from the disk, or copy the folder. Without --score, tokens are coloured by surprisal, the -log p of the
sampled token; entropy is of the whole distribution and takes a pass of the model over each trajectory, on an
accelerator where torch sees one. What is scored is kept in the job's state: an analysis that was stopped goes on where
it was."""


def add_arguments(analyse: argparse.ArgumentParser) -> None:
    """Its options, but for --state, which all commands on jobs share."""
    analyse.epilog = EPILOG
    analyse.formatter_class = argparse.RawDescriptionHelpFormatter
    analyse.description = DESCRIPTION
    analyse.add_argument("job", help="name of the job, as in its manifest")
    analyse.add_argument("--out", type=Path, help="folder to write (default: analysis/ in the job's state)")
    analyse.add_argument("--stage", action="append", default=[], help="this stage alone; may be given more than once")
    analyse.add_argument(
        "--limit",
        type=count,
        default=4000,
        help="trajectories in the viewer, about: groups stay whole (default: %(default)s)",
    )
    analyse.add_argument(
        "--score",
        default="",
        metavar="MODEL",
        help="compute entropies with this model: a stage's name, or a Hugging Face folder",
    )
    analyse.add_argument(
        "--sample", type=count, default=64, help="trajectories that --score takes (default: %(default)s, the paper's)"
    )
    analyse.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json (default: the job's own)")


def main(given: argparse.Namespace) -> int:
    """Analyse; returns the exit code."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rstar2_train.analysis.analyse import AnalysisRequest, analyse
    from rstar2_train.analysis.sources import AnalysisError
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.rollout.trajectory_store import TrajectoryStoreError

    state = JobState(given.state / given.job)
    if not state.job_file.exists():
        return _fail(f"{state.root}: no such job; run it first, or name the folder of all jobs with --state")
    wanted = AnalysisRequest(
        out=given.out or state.analysis,
        stages=given.stage,
        limit=given.limit,
        model=given.score,
        sample=given.sample,
        tokenizer=given.tokenizer,
    )
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    try:
        with bar:
            summary = analyse(state, wanted, bar)
    except (AnalysisError, TrajectoryStoreError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or wanted.out}: {error.strerror}")
    except KeyboardInterrupt:
        return _fail("stopped; nothing was changed, and what was scored is kept")
    print(
        f"{summary['trajectories']} trajectories, {summary['shown']} of them in the viewer: {wanted.out / 'index.html'}"
    )
    return 0


def _fail(message: str) -> int:
    print(f"rstar2 analyse: {message}", file=sys.stderr)
    return 1
