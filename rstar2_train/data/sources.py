"""Finds the file or folder behind a `source` or `data` value of a manifest.

A value is a path (relative to the manifest), `generated://NAME/FILE` (made here, once, from the job's seed),
`pvc://CLAIM/PATH` (mounted by the operator) or `hf://OWNER/NAME` (fetched into storage by the operator).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rstar2_train.data import tiny
from rstar2_train.data.problems import DataError

SCHEME = "generated://"

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
    if uri.startswith(SCHEME):
        return _generated(uri, state_dir=state_dir, seed=seed)
    scheme, separator, rest = uri.partition("://")
    if separator:
        advice = {
            "pvc": "a claim exists only in a cluster; give the path of a local copy",
            "hf": f"fetch it first, `hf download {rest} --local-dir DIR`, and give that path",
        }.get(scheme, f"allowed: a path, {SCHEME}NAME/FILE, pvc://CLAIM/PATH, hf://OWNER/NAME")
        raise DataError(f"{uri}: cannot be used on this machine: {advice}")
    path = base_dir / Path(uri).expanduser()
    if not path.exists():
        raise DataError(f"{uri}: no such file or folder (looked at {path.resolve()})")
    return path


def _generated(uri: str, *, state_dir: Path, seed: int) -> Path:
    name, _, file = uri.removeprefix(SCHEME).partition("/")
    if name not in GENERATORS:
        raise DataError(f"{uri}: there is no generator {name!r}; there are: {', '.join(sorted(GENERATORS))}")
    version, make = GENERATORS[name]
    folder = state_dir / "generated" / f"{name}-v{version}-seed-{seed}"
    if not folder.exists():
        _make_whole(folder, lambda directory: make(directory, seed=seed))
    path = folder / file
    if not file or not path.exists():
        there = ", ".join(sorted(entry.name for entry in folder.iterdir()))
        raise DataError(f"{uri}: the generator {name!r} makes no {file!r}; it makes: {there}")
    return path


def _make_whole(folder: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder completely or leave nothing: made aside, then renamed; the first of two writers wins."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        make(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not folder.exists():  # not lost to another writer of the same content
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
