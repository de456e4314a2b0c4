"""Finds the file or folder behind a `source` or `data` value of a manifest.

A value is a path (relative to the manifest), `generated://NAME/FILE` (made here, once, from the job's seed),
`pvc://CLAIM/PATH` (mounted by the operator) or `hf://OWNER/NAME` (fetched into a cluster's storage by
`rstar2_train.launch.pod prepare`). Where they lie in a cluster is said by `api/sources.py`.
"""

from __future__ import annotations

import collections
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import GENERATED, generated_folder, sources, split_generated
from rstar2_train.data import tiny
from rstar2_train.data.problems import DataError, read_conversations, read_problems
from rstar2_train.utils.files import write_atomically

VERSION_FILE = "version"
"""Beside the generated files: which version of the generator made them."""

GENERATORS: dict[str, tuple[int, Callable[..., None]]] = {
    "tiny": (tiny.VERSION, tiny.write_tiny),
    "tiny-smoke": (tiny.VERSION, partial(tiny.write_tiny, recipe=tiny.SMOKE)),
}
"""Name -> (version of what it makes, the function that makes it: `make(directory, *, seed)`)."""


def resolve(uri: str, *, base_dir: Path, state_dir: Path, seed: int) -> Path:
    """The path that `uri` stands for, made first when it is a generated one.

    `base_dir`: the manifest's folder. `state_dir`: where generated data is kept, under `generated/`.
    `seed`: the job's seed, which fixes generated data. Raises DataError when there is nothing to be found.
    """
    if uri.startswith(GENERATED):
        return _generated(uri, state_dir=state_dir, seed=seed)
    scheme, separator, rest = uri.partition("://")
    if separator:
        advice = {
            "pvc": "a claim exists only in a cluster; give the path of a local copy",
            "hf": f"fetch it first, `hf download {rest} --local-dir DIR`, and give that path",
        }.get(scheme, f"allowed: a path, {GENERATED}NAME/FILE, pvc://CLAIM/PATH, hf://OWNER/NAME")
        raise DataError(f"{uri}: cannot be used on this machine: {advice}")
    path = base_dir / Path(uri).expanduser()
    if not path.exists():
        raise DataError(f"{uri}: no such file or folder (looked at {path.resolve()})")
    return path


def unusable(job: AgenticRLJob) -> dict[str, str]:
    """What is wrong with the files of a job whose sources are paths: field -> `FILE:LINE: what`, the first of each.

    Every row is read, one at a time, so that the last stage's data fails before the first stage has trained.
    """
    found = {}
    for source in sources(job):
        path = Path(source.value)
        try:
            if source.holds == "model" and not (path / "config.json").is_file():
                raise DataError(f"{path}: no config.json in it; it is no Hugging Face model folder")
            if source.holds == "problems":
                collections.deque(read_problems(path), maxlen=0)
            if source.holds == "conversations":
                collections.deque(read_conversations(path), maxlen=0)
        except DataError as error:
            found[source.field] = str(error)
    return found


def _generated(uri: str, *, state_dir: Path, seed: int) -> Path:
    try:
        name, file = split_generated(uri)
    except ValueError as error:
        raise DataError(f"{uri}: {error}") from error
    if name not in GENERATORS:
        raise DataError(f"{uri}: there is no generator {name!r}; there are: {', '.join(sorted(GENERATORS))}")
    version, make = GENERATORS[name]
    folder = Path(generated_folder(name, state=PurePosixPath(state_dir), seed=seed))
    if _version(folder) != str(version):
        _make_whole(folder, lambda directory: make(directory, seed=seed), version=str(version))
    path = folder / file
    if not path.exists():
        there = ", ".join(sorted(entry.name for entry in folder.iterdir() if entry.name != VERSION_FILE))
        raise DataError(f"{uri}: the generator {name!r} makes no {file!r}; it makes: {there}")
    return path


def _version(folder: Path) -> str | None:
    """The version that made the folder; None when there is none."""
    file = folder / VERSION_FILE
    return file.read_text(encoding="utf-8") if file.exists() else None


def _make_whole(folder: Path, make: Callable[[Path], None], *, version: str) -> None:
    """Fill a folder completely or leave what was there: made aside, then renamed; the first of two writers wins."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    old = aside.with_name(f"{aside.name}.old")
    try:
        for left in (aside, old):
            shutil.rmtree(left, ignore_errors=True)
        aside.mkdir(parents=True)
        make(aside)
        write_atomically(aside / VERSION_FILE, version)
        if folder.exists() and _version(folder) != version:
            folder.rename(old)
        try:
            aside.rename(folder)
        except OSError:
            if _version(folder) != version:  # not lost to another writer of the same content
                raise
    finally:
        for left in (aside, old):
            shutil.rmtree(left, ignore_errors=True)
