"""Finds the data files behind what a user names: a file, a pattern, or a folder as `hf download` leaves it.

Above data/readers.py; used by cli/data.py. A dataset of the Hub says in its card (README.md) which files make up which
configuration and split; one without a card, or written by `datasets.save_to_disk`, says it by the files' names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.data.readers import SUFFIXES, DataError, brief

_SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def data_files(named: str) -> list[Path]:
    """The files behind `FILE`, `PATTERN` (with `*`) or `FOLDER[@CONFIGURATION/SPLIT]`, in the order of their names.

    A folder with a choice of splits gives `train`. Raises DataError when nothing is there, or when there are several
    configurations and none is chosen; the message lists them.
    """
    folder, at, choice = named.rpartition("@")
    if not at or Path(named).expanduser().exists():
        folder, choice = named, ""
    path = Path(folder).expanduser()
    if path.is_dir():
        return _of_folder(path, choice)
    if choice:
        raise DataError(f"{named}: {folder} is not a folder; @{choice} chooses among the splits of one")
    if path.is_file():
        return [path]
    fixed = next((at for at, part in enumerate(path.parts) if any(mark in part for mark in "*?[")), len(path.parts) - 1)
    pattern = "/".join(path.parts[fixed:])
    found = sorted(file for file in Path(*path.parts[:fixed]).glob(pattern) if file.suffix in SUFFIXES)
    if not found:
        raise DataError(f"{named}: no such file or folder (looked at {path.absolute()})")
    return found


def _of_folder(folder: Path, choice: str) -> list[Path]:
    splits = _by_card(folder) or _by_name(folder)
    if not splits:
        raise DataError(f"{folder}: no {', '.join(SUFFIXES)} file in it")
    fitting = [name for name in splits if choice in (name, *name.split("/"))] if choice else list(splits)
    if len(fitting) > 1:
        fitting = [name for name in fitting if name.rpartition("/")[2] == "train"]
    if len(fitting) != 1:
        given = f"{choice!r} is none or several of them" if choice else "choose one"
        raise DataError(f"{folder}: {given}: give {folder}@{{{', '.join(sorted(splits))}}}")
    return splits[fitting[0]]


def _by_card(folder: Path) -> dict[str, list[Path]]:
    """`configuration/split` -> files, as the card's `configs` says; empty when it says nothing."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    if not text.startswith("---"):
        return {}
    try:
        header = yaml.safe_load(text.split("\n---", 1)[0])
    except yaml.YAMLError as error:
        raise DataError(f"{card}: its header is not YAML: {str(error).splitlines()[0]}") from error
    found: dict[str, list[Path]] = {}
    configurations = (header.get("configs") if isinstance(header, dict) else None) or []
    for configuration in configurations:
        if not isinstance(configuration, dict):
            raise DataError(f"{card}: configs must be a list of objects, got {brief(configurations)}")
        name, base = configuration.get("config_name", "default"), folder / configuration.get("data_dir", "")
        for split, patterns in _splits(configuration.get("data_files")):
            try:
                files = sorted({file for pattern in patterns for file in base.glob(pattern) if file.is_file()})
            except (ValueError, NotImplementedError) as error:  # such as an absolute one
                raise DataError(f"{card}: data_files {patterns}: {error}") from error
            if files:  # a part of the dataset may not have been downloaded
                found[f"{name}/{split}"] = files
    return found


def _splits(data_files: Any) -> list[tuple[str, list[str]]]:
    """The forms of `data_files` in a card: a pattern, a list of them, or a list of `{split, path}`."""
    entries = data_files if isinstance(data_files, list) else [data_files] if data_files else []
    if entries and all(isinstance(entry, str) for entry in entries):
        return [("train", entries)]
    paths = ((entry.get("split", "train"), entry.get("path")) for entry in entries if isinstance(entry, dict))
    return [(split, path if isinstance(path, list) else [path]) for split, path in paths if path]


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """Split -> files: by a folder `train`, a name `SPLIT-00000-of-00004` or `train.jsonl`; all others are `train`."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder)
        if file.suffix not in SUFFIXES or file.name in _NOT_DATA or any(part.startswith(".") for part in inside.parts):
            continue
        names = [*map(_SPLIT.match, inside.parts[:-1]), _SHARD.fullmatch(file.stem), _SPLIT.match(file.name)]
        found[next((name.group(1) for name in names if name), "train")].append(file)
    return dict(found)
