"""The flow of `rstar2 analyse`: from the trajectory files of a job to a folder of pages.

Selects files and groups (`sources.py`), reads each file once (`gather.py`), and writes the pages (`pages.py`). All
files go into a temporary folder that replaces an older analysis when it is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.analysis import pages, sources
from rstar2_train.analysis.gather import FileReader
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile
from rstar2_train.analysis.viewer import ViewerData
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.state_files import UnreadableState
from rstar2_train.capacity.config_file import TOKENIZER
from rstar2_train.rollout.template_file import tool_parser
from rstar2_train.tracking.traces import Decode
from rstar2_train.utils.numbers import mean

StartProgress = Callable[[int], Callable[[], None]]
"""Called with the number of trajectories; returns a function that counts one."""


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """The options of an analysis."""

    out: Path
    """Folder of the pages."""
    stages: Collection[str] = ()
    """Names of the stages to include; empty: all."""
    limit: int = 4000
    """Approximate number of trajectories in the viewer; groups stay complete."""
    model: str = ""
    """Model for entropies: name of a stage, or Hugging Face folder; empty: no entropies."""
    sample: int = 64
    """Number of trajectories to score (the paper: 64)."""
    tokenizer: Path | None = None
    """Folder with tokenizer.json; None: the tokenizer of the job."""


def analyse(state: JobState, request: AnalysisRequest, start_progress: StartProgress) -> dict[str, Any]:
    """Write the pages and return the content of `summary.json`.

    Raises:
        AnalysisError: no trajectories, no tokenizer, unknown stage or model, damaged job file, or `out` is not an
            analysis.
        TrajectoryStoreError: a trajectory file is damaged.
    """
    check_out(request.out)
    try:
        job = state.job()
    except UnreadableState as error:
        raise AnalysisError(f"{error}.") from error
    files = sources.find_files(state, job, request.stages)
    scored = sources.file_to_score(files, request.model) if request.model else None
    rows = [(file, sources.read_rows(file)) for file in files]
    selection = sources.select_samples(rows, limit=request.limit, scored=scored, sample=request.sample)
    tokenizer = request.tokenizer or find_tokenizer(state, job)
    decode, parser = load_decoder(tokenizer), tool_parser(tokenizer, job.spec.model)
    scorer = None
    if scored is not None:
        model = find_model(state, job, request.model)
        # Greedy sampling (temperature 0) has no distribution, so the model's own distribution is used.
        scorer = Scorer(model, cache=state.entropies, temperature=sampling_temperature(job, scored) or 1.0)
    with atomic_folder(request.out) as folder:
        reader = FileReader(
            selection=selection, decode=decode, parser=parser, scorer=scorer, data=ViewerData(folder / "data")
        )
        advance = start_progress(sum(len(members) for _, members in rows))
        for file in files:
            reader.read(file, on_row=advance)
        entropy = None
        if scored is not None and scorer is not None:
            entropy = reader.figures.entropy.summary() | {
                "model": request.model,
                "stage": scored.stage,
                "set": scored.set,
                "step": scored.step,
                "temperature": scorer.temperature,
                "logprob_gap": mean(reader.figures.logprob_gaps),
            }
        return pages.write_pages(folder, job, reader.figures, entropy, reader.data)


def sampling_temperature(job: AgenticRLJob, source: TrajectoryFile) -> float:
    """Return the sampling temperature of a file's trajectories. Pure.

    Raises AnalysisError for a validation whose settings were removed from the manifest.
    """
    stage = job.stage(source.stage)
    if source.set == "training":
        return job.grpo_settings(stage).temperature
    if source.set == "filter" and stage.filter is not None:
        return stage.filter.sampling.temperature
    if stage.evaluate is not None:
        return stage.evaluate.sampling.temperature
    if job.spec.validation is None:
        raise AnalysisError(
            f"{source.path} was sampled with spec.validation, which the job no longer has. Restore it in the manifest"
        )
    return job.spec.validation.sampling.temperature


def find_model(state: JobState, job: AgenticRLJob, model: str) -> Path:
    """Return the folder of a model by the name of its stage or by its path. Raises AnalysisError if it is missing."""
    if any(stage.name == model for stage in job.spec.stages):
        folder = state.stage(model).model
        if not folder.exists():
            raise AnalysisError(
                f"stage {model} has no model yet ({folder} does not exist). Use a completed stage or a folder"
            )
        return folder
    folder = Path(model)
    if not folder.is_dir():
        names = ", ".join(stage.name for stage in job.spec.stages)
        raise AnalysisError(f"--score {model}: neither a stage of {job.metadata.name} ({names}) nor a folder")
    return folder


def find_tokenizer(state: JobState, job: AgenticRLJob) -> Path:
    """Return the folder of the job's tokenizer: its newest model, or its source. Raises AnalysisError without one."""
    models = [state.stage(stage.name).model for stage in reversed(job.spec.stages)] + [Path(job.spec.model.source)]
    folder = next((folder for folder in models if (folder / TOKENIZER).exists()), None)
    if folder is None:
        raise AnalysisError(
            f"no {TOKENIZER} in the models of the stages or in {job.spec.model.source}. Set a folder with --tokenizer"
        )
    return folder


def load_decoder(folder: Path) -> Decode:
    """Return a function from token ids to text with special tokens. Raises AnalysisError for an invalid tokenizer."""
    from tokenizers import Tokenizer

    file = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no specific exception
        raise AnalysisError(f"{file}: cannot read the tokenizer: {error}") from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def check_out(out: Path) -> None:
    """Raises AnalysisError if `out` exists and is neither an older analysis nor an empty folder."""
    is_analysis = all((out / name).exists() for name in pages.MARKS)
    if out.exists() and not is_analysis and not (out.is_dir() and not any(out.iterdir())):
        raise AnalysisError(f"{out} exists and is not an analysis, so it is not replaced. Set another --out")


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `out` on success, and is removed after an error.

    Also removes temporary folders of killed processes.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for leftover in out.parent.glob(f".{out.name}.*.*"):
        if leftover.suffix[1:].isdigit() and not Path("/proc", leftover.suffix[1:]).exists():
            shutil.rmtree(leftover)
    aside, old = (out.with_name(f".{out.name}.{name}.{os.getpid()}") for name in ("new", "old"))
    for leftover in (aside, old):  # of a killed process with the same id, which is usual in a container
        shutil.rmtree(leftover, ignore_errors=True)
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
