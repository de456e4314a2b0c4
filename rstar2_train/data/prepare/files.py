"""Finds the data files of a command-line argument: a file, a glob pattern, or a folder written by `hf download`.

Used by `cli/data.py`. The card (README.md) of a Hub dataset lists the files per configuration and split. Without a
card, and for a folder of `datasets.save_to_disk`, the file names determine the split.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.data.readers import SUFFIXES, DataError
from rstar2_train.utils.text import short_repr

_SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def find_data_files(location: str) -> list[Path]:
    """Return the files of `FILE`, `PATTERN` (with `*`) or `FOLDER[@CONFIGURATION/SPLIT]`, sorted by name.

    Of several splits in a folder, `train` is the default. Raises DataError if there is no file, or if `location` does
    not select exactly one split; the message lists the splits.
    """
    folder, separator, choice = location.rpartition("@")
    if not separator or Path(location).expanduser().exists():
        folder, choice = location, ""
    path = Path(folder).expanduser()
    if path.is_dir():
        return _files_of_split(path, choice)
    if choice:
        raise DataError(f"{location}: {folder} is not a folder; @{choice} selects a split of a folder")
    if path.is_file():
        return [path]
    parts = path.parts
    fixed = next((index for index, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts) - 1)
    pattern = "/".join(parts[fixed:])
    files = sorted(file for file in Path(*parts[:fixed]).glob(pattern) if file.suffix in SUFFIXES)
    if not files:
        raise DataError(f"{location}: no such file or folder: {path.absolute()}")
    return files


def _files_of_split(folder: Path, choice: str) -> list[Path]:
    splits = _splits_of_card(folder) or _splits_by_name(folder)
    if not splits:
        raise DataError(f"{folder}: the folder contains no {', '.join(SUFFIXES)} file")
    matching = [name for name in splits if choice in (name, *name.split("/"))] if choice else list(splits)
    if len(matching) > 1:
        matching = [name for name in matching if name.rpartition("/")[2] == "train"]
    if len(matching) != 1:
        fault = f"@{choice} does not select exactly one split" if choice else "the folder has several splits"
        raise DataError(f"{folder}: {fault}; select one with {folder}@{{{', '.join(sorted(splits))}}}")
    return splits[matching[0]]


def _splits_of_card(folder: Path) -> dict[str, list[Path]]:
    """Return `configuration/split` -> files from the card's `configs`; empty without such a card."""
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    if not text.startswith("---"):
        return {}
    try:
        header = yaml.safe_load(text.split("\n---", 1)[0])
    except yaml.YAMLError as error:
        raise DataError(f"{card}: the header is not valid YAML: {str(error).splitlines()[0]}") from error
    splits: dict[str, list[Path]] = {}
    configurations = (header.get("configs") if isinstance(header, dict) else None) or []
    for configuration in configurations:
        if not isinstance(configuration, dict):
            raise DataError(f"{card}: configs must be a list of objects, got {short_repr(configurations)}")
        name, base = configuration.get("config_name", "default"), folder / configuration.get("data_dir", "")
        for split, patterns in _patterns_by_split(configuration.get("data_files")):
            try:
                files = sorted({file for pattern in patterns for file in base.glob(pattern) if file.is_file()})
            except (ValueError, NotImplementedError) as error:  # such as an absolute pattern
                raise DataError(f"{card}: data_files {patterns}: {error}") from error
            if files:  # parts of the dataset may not be downloaded
                splits[f"{name}/{split}"] = files
    return splits


def _patterns_by_split(data_files: Any) -> list[tuple[str, list[str]]]:
    """Return (split, patterns) of a card's `data_files`: a pattern, a list, or a list of `{split, path}`."""
    entries = data_files if isinstance(data_files, list) else [data_files] if data_files else []
    if entries and all(isinstance(entry, str) for entry in entries):
        return [("train", entries)]
    paths = ((entry.get("split", "train"), entry.get("path")) for entry in entries if isinstance(entry, dict))
    return [(split, path if isinstance(path, list) else [path]) for split, path in paths if path]


def _splits_by_name(folder: Path) -> dict[str, list[Path]]:
    """Return split -> files by a folder `train`, a name `SPLIT-00000-of-00004` or `train.jsonl`; others are `train`."""
    splits: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.suffix not in SUFFIXES or file.name in _NOT_DATA or any(part.startswith(".") for part in parts):
            continue
        matches = [*map(_SPLIT.match, parts[:-1]), _SHARD.fullmatch(file.stem), _SPLIT.match(file.name)]
        splits[next((match.group(1) for match in matches if match), "train")].append(file)
    return dict(splits)
