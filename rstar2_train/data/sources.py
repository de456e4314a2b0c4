"""Resolves a `source` or `data` value of a manifest to a file or folder on this machine.

A value is a path relative to the manifest, `generated://NAME/FILE`, `s3://BUCKET/KEY` (also gs://, az://),
`pvc://CLAIM/PATH` or `hf://OWNER/NAME`. This module creates generated data once per job seed, and downloads from
buckets. The operator mounts claims, and `rstar2_train.launch.pod prepare` downloads from the Hub;
`api/sources.py` defines the paths in a cluster.
"""

from __future__ import annotations

import collections
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import (
    BUCKETS,
    GENERATED,
    BucketSource,
    generated_folder,
    sources,
    split_bucket,
    split_generated,
)
from rstar2_train.api.stages import SFTStage
from rstar2_train.api.storage import StorageSpec
from rstar2_train.api.tasks import ToolSpec
from rstar2_train.capacity.weight_files import merge_advice
from rstar2_train.data import tiny, word_problems
from rstar2_train.data.demonstrations import NO_FIRST_LEVEL, all_held_out, read_demonstrations
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.tools.function_schema import check_function
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.toolset import load_tool
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.local_path import exists, file_fault, local_path, missing_advice

VERSION_FILE = "version"
"""Name of the file with the generator's version, in the folder of the generated files."""

GENERATORS: dict[str, tuple[int, Callable[..., None]]] = {
    "tiny": (tiny.VERSION, tiny.write_tiny),
    "tiny-smoke": (tiny.VERSION, partial(tiny.write_tiny, recipe=tiny.SMOKE)),
    "word-problems": (word_problems.VERSION, word_problems.write_word_problems),
}
"""Name -> (version of the data, function that writes it: `generate(directory, *, seed)`)."""

_DOWNLOAD = ": download the whole folder, or save the model with save_pretrained of transformers"


def resolve(uri: str, *, base_dir: Path, state_dir: Path, seed: int, storage: StorageSpec | None = None) -> Path:
    """Return the path of `uri`. Creates generated data, and downloads from a bucket, unless the files exist.

    `base_dir`: folder of the manifest. `state_dir`: folder in which `generated/` holds generated data, and `buckets/`
    downloads. `seed`: seed of the job, which determines generated data. `storage`: the job's, with the server of
    buckets. Raises DataError if the path does not exist.
    """
    if uri.startswith(BUCKETS):
        return _resolve_bucket(uri, state_dir=state_dir, storage=storage or StorageSpec())
    if uri.startswith(GENERATED):
        return _resolve_generated(uri, state_dir=state_dir, seed=seed)
    scheme, separator, rest = uri.partition("://")
    if separator:
        advice = {
            "pvc": "claims exist only in a cluster; use the path of a local copy",
            "hf": f"download it with `hf download {rest} --local-dir DIR` and use that path",
        }.get(scheme, f"allowed: a path, {GENERATED}NAME/FILE, s3://BUCKET/KEY, pvc://CLAIM/PATH, hf://OWNER/NAME")
        raise DataError(f"{uri}: not available on this machine: {advice}")
    try:
        path = base_dir / local_path(uri)
        if exists(path):
            return path
    except ValueError as error:
        raise DataError(str(error)) from error
    raise DataError(f"{uri}: no such file or folder: {path.resolve()}{missing_advice(uri)}")


def find_invalid_files(job: AgenticRLJob) -> dict[str, str]:
    """Return the first error of each invalid file of a job whose sources are paths: field -> `FILE:LINE: error`.

    Reads every row, so that invalid data of the last stage fails the job before the first stage starts.
    """
    errors = {}
    check_row = row_check(job)
    for source in sources(job):
        path = Path(source.value)
        try:
            if source.holds == "model" and not (path / "config.json").is_file():
                raise DataError(
                    f"{path}: no config.json: not a Hugging Face model folder{merge_advice(path) or _DOWNLOAD}"
                )
            if source.holds == "template" and (fault := file_fault(path)):
                raise DataError(f"{path}: {fault}")
            if source.holds == "problems":
                collections.deque(map(check_row, read_problems(path)), maxlen=0)
            if source.holds == "conversations":
                _check_demonstrations(path, source.owner)
            if isinstance(source.owner, ToolSpec):
                load_tool(source.owner)
            if source.holds == "checker":
                check_function(path, "score")
            if source.holds == "objective":
                check_function(path, "advantages")
                check_function(path, "loss")
        except (DataError, SourceError) as error:
            errors[source.field] = str(error)
    return errors


def _check_demonstrations(path: Path, owner: object) -> None:
    """Read every row. Raises DataError also for a stage that lacks rows of the first level, or rows to train on."""
    levels = collections.Counter(row.level for row in read_demonstrations(path))
    if not isinstance(owner, SFTStage):
        return
    if owner.shortest_first_steps and not levels[1]:
        raise DataError(f"{path}: {NO_FIRST_LEVEL}")
    if owner.held_out_rows and owner.held_out_rows >= levels.total():
        raise DataError(f"{path}: {all_held_out(owner.held_out_rows, levels.total())}")


def row_check(job: AgenticRLJob) -> Callable[[Problem], None]:
    """Return a function that raises DataError for a row whose tools or reward the job does not have.

    The sources of the job's checkers must be paths.
    """
    names = [tool.name for tool in job.spec.tools] or ([] if job.spec.environments else [job.spec.rollout.tool])
    try:
        rewards = TaskRewards(job.spec.rewards)
    except SourceError:  # an error of its own field
        return lambda _: None

    def check(problem: Problem) -> None:
        unknown = sorted(set(problem.tools or ()) - set(names))
        if unknown:
            raise DataError(
                f"row {problem.id}: tools: unknown tool {unknown[0]!r}; the job has {', '.join(names) or 'none'}"
            )
        if problem.functions and job.spec.environments and not job.spec.rewards:
            raise DataError(
                f"row {problem.id}: functions: a row with functions of its own plays no episode, so the environment "
                "gives no reward: set spec.rewards"
            )
        try:
            rewards.check_row(problem.reward, problem.answer, problem.data)
        except ValueError as error:
            raise DataError(f"row {problem.id}: {error}") from error

    return check


def _resolve_bucket(uri: str, *, state_dir: Path, storage: StorageSpec) -> Path:
    # obstore is only in the images of trainers.
    from rstar2_train.storage.store import StorageError

    try:
        return download_bucket(split_bucket(uri), storage, state=state_dir)
    except (StorageError, ValueError) as error:
        raise DataError(f"{uri}: {error}") from error


def download_bucket(source: BucketSource, storage: StorageSpec, *, state: Path) -> Path:
    """Download the object or prefix of a bucket into a state directory; return its path there.

    Raises StorageError, with the credentials' remedy if access is denied.
    """
    from rstar2_train.storage.source import fetch_source, open_source
    from rstar2_train.storage.store import AccessDenied

    bucket = open_source(source, storage)
    folder = Path(source.folder(PurePosixPath(state)))
    try:
        fetch_source(bucket, source.key, folder, is_plain=bucket.is_plain)
    except AccessDenied as error:
        raise AccessDenied(
            f"{error}. The variables of the environment need credentials with the right to read and list; in a "
            "cluster, name their Secret in spec.secretRefs.storage"
        ) from error
    return folder / source.key


def _resolve_generated(uri: str, *, state_dir: Path, seed: int) -> Path:
    try:
        name, file = split_generated(uri)
    except ValueError as error:
        raise DataError(f"{uri}: {error}") from error
    if name not in GENERATORS:
        raise DataError(f"{uri}: unknown generator {name!r}; existing: {', '.join(sorted(GENERATORS))}")
    version, generate = GENERATORS[name]
    folder = Path(generated_folder(name, state=PurePosixPath(state_dir), seed=seed))
    if _version(folder) != str(version):
        _generate(folder, lambda directory: generate(directory, seed=seed), version=str(version))
    path = folder / file
    if not path.exists():
        existing = ", ".join(sorted(entry.name for entry in folder.iterdir() if entry.name != VERSION_FILE))
        raise DataError(f"{uri}: generator {name!r} writes no {file!r}; it writes: {existing}")
    return path


def _version(folder: Path) -> str | None:
    """Return the generator version of a folder; None if the folder does not exist or has no version file."""
    file = folder / VERSION_FILE
    return file.read_text(encoding="utf-8") if file.exists() else None


def _generate(folder: Path, generate: Callable[[Path], None], *, version: str) -> None:
    """Generate a folder atomically: write a temporary folder, then rename it. The first of two writers wins."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    old = aside.with_name(f"{aside.name}.old")
    try:
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)
        aside.mkdir(parents=True)
        generate(aside)
        write_atomically(aside / VERSION_FILE, version)
        if folder.exists() and _version(folder) != version:
            folder.rename(old)
        try:
            aside.rename(folder)
        except OSError:
            if _version(folder) != version:  # else another process wrote the same content first
                raise
    finally:
        for leftover in (aside, old):
            shutil.rmtree(leftover, ignore_errors=True)
