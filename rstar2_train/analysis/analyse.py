"""From a job's trajectory files to a folder of pages: the flow of `rstar2 analyse`.

find and choose (`sources`) -> one reading of all files (`gather`): entropies where a model is named (`score`), token by
token (`tokens`), into figures (`figures`, `study`, `roc`) and the viewer's data (`viewer`) -> plots, pages and
`summary.json` (`pages`). All is written into a folder aside, which takes an older analysis's place when it is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from rstar2_train.analysis import pages, sources
from rstar2_train.analysis.gather import TrajectoryFigures, read
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile
from rstar2_train.analysis.tokens import Decode
from rstar2_train.analysis.viewer import ViewerData
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What was asked for."""

    out: Path
    stages: Collection[str] = ()
    """These alone; empty: all."""
    limit: int = 4000
    """Trajectories in the viewer, about: groups stay whole."""
    model: str = ""
    """What computes entropies: a stage's name (its model) or a Hugging Face folder; empty: nothing does."""
    sample: int = 64
    """Trajectories that it scores (the paper: 64)."""
    tokenizer: Path | None = None
    """Folder with tokenizer.json; None: the job's own."""


def analyse(state: JobState, wanted: AnalysisRequest, progress: Progress) -> dict[str, Any]:
    """Write the pages; returns what `summary.json` holds.

    Raises:
        AnalysisError: no trajectories, no tokenizer, no such stage or model, a damaged job file, or something else lies
            at `out`.
        StoreError: a trajectory file is damaged.
    """
    check_out(wanted.out)
    try:
        job = state.job()
    except ValueError as error:
        raise AnalysisError(f"{state.job_file} is not a job: {error}") from error
    files = sources.find(state, job, wanted.stages)
    scored = sources.pool(files, wanted.model) if wanted.model else None
    rows = [(file, sources.census(file)) for file in files]
    choice = sources.choose(rows, limit=wanted.limit, scored=scored, sample=wanted.sample)
    decode = load_decoder(wanted.tokenizer or find_tokenizer(state, job))
    scorer = None
    if scored is not None:
        model = find_model(state, job, wanted.model)
        # What was chosen greedily has no distribution that it was drawn from: then that of the model itself.
        scorer = Scorer(model, cache=state.entropies, temperature=temperature(job, scored) or 1.0)
    with replaced(wanted.out) as folder:
        data = ViewerData(folder / "data")
        task = progress.add_task("trajectories", total=sum(len(members) for _, members in rows))
        found = TrajectoryFigures()
        for file in files:
            read(file, choice, decode, scorer, data, found, advance=lambda: progress.advance(task))
        entropy = None
        if scored is not None and scorer is not None:
            entropy = found.entropy.summary() | {
                "model": wanted.model,
                "stage": scored.stage,
                "set": scored.set,
                "step": scored.step,
                "temperature": scorer.temperature,
                "logprob_gap": sum(found.gap) / len(found.gap) if found.gap else None,
            }
        return pages.write(folder, job, found, entropy, data)


def temperature(job: AgenticRLJob, source: TrajectoryFile) -> float:
    """The temperature that a file's trajectories were sampled at. Pure.

    Raises AnalysisError for an evaluation whose settings the job has no more (its manifest was changed since).
    """
    stage = job.stage(source.stage)
    if source.set == "training":
        return job.grpo_settings(stage).temperature
    if source.set == "filter" and stage.filter is not None:
        return stage.filter.sampling.temperature
    if stage.evaluate is not None:
        return stage.evaluate.sampling.temperature
    if job.spec.validation is None:
        raise AnalysisError(f"{source.path} was sampled under spec.validation, which the job has no more: put it back")
    return job.spec.validation.sampling.temperature


def find_model(state: JobState, job: AgenticRLJob, model: str) -> Path:
    """The folder of a model that is named by its stage or by its path. Raises AnalysisError when there is none."""
    if any(stage.name == model for stage in job.spec.stages):
        folder = state.stage(model).model
        if not folder.exists():
            raise AnalysisError(
                f"stage {model} has handed on no model ({folder}): name one that has trained, or a folder"
            )
        return folder
    folder = Path(model)
    if not folder.is_dir():
        names = ", ".join(stage.name for stage in job.spec.stages)
        raise AnalysisError(f"{model} is neither a stage of {job.metadata.name} ({names}) nor a folder")
    return folder


def find_tokenizer(state: JobState, job: AgenticRLJob) -> Path:
    """The job's tokenizer: that of its newest model, else of its source. Raises AnalysisError when there is none."""
    places = [state.stage(stage.name).model for stage in reversed(job.spec.stages)] + [Path(job.spec.model.source)]
    found = next((folder for folder in places if (folder / TOKENIZER).exists()), None)
    if found is None:
        raise AnalysisError(
            f"no {TOKENIZER} in any stage's model nor in {job.spec.model.source}: name a folder with --tokenizer"
        )
    return found


def load_decoder(folder: Path) -> Decode:
    """Token ids to text, special tokens included. Raises AnalysisError for a tokenizer that cannot be read."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more telling
        raise AnalysisError(f"{file} cannot be read as a tokenizer: {error}") from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def check_out(out: Path) -> None:
    """Raises AnalysisError when `out` is there and neither an older analysis nor an empty folder."""
    ours = all((out / name).exists() for name in (pages.SUMMARY, *pages.ASSETS))
    if out.exists() and not ours and not (out.is_dir() and not any(out.iterdir())):
        raise AnalysisError(f"{out} is there and is no earlier analysis: it will not be replaced. Name another --out")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A folder to write into that becomes `out` at the end, or is gone after an error: `out` is never half-written.

    What a process left that was killed is removed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}.*.*"):
        if left.suffix[1:].isdigit() and not Path("/proc", left.suffix[1:]).exists():
            shutil.rmtree(left)
    aside, old = (out.with_name(f".{out.name}.{name}.{os.getpid()}") for name in ("new", "old"))
    for left in (aside, old):  # of a process that had this number, as the only one of a container has each time
        shutil.rmtree(left, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        if out.exists():
            out.replace(old)
        aside.replace(out)
    finally:
        if old.exists() and not out.exists():
            old.replace(out)
        for folder in (aside, old):
            shutil.rmtree(folder, ignore_errors=True)
