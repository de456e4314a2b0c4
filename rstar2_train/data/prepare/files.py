"""Finds the data files of a command-line argument: a file, a glob pattern, or a folder written by `hf download`.

Used by `cli/data.py`. The card (README.md) of a Hub dataset lists the files per configuration and split. Without a
card, and for a folder of `datasets.save_to_disk`, the file names determine the split. No data file is left out without
a message: one of an unsupported type, a missing part of a split, and a column in the name of a folder are refused.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.data.readers import SUFFIXES, DataError
from rstar2_train.utils.local_path import local_path
from rstar2_train.utils.text import short_repr

_SPLIT = re.compile(r"(train|test|validation|valid|val|dev)(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})")
_DATA_FILE = re.compile(
    r".+\.(jsonl?|ndjson|jsonlines|csv|tsv|parquet|arrow|feather|orc|avro|xlsx?)(\.(gz|bz2|xz|zstd?|lz4|zip|snappy|br))?",
    re.IGNORECASE,
)
"""Name of a file with rows, of a supported type or not."""
_NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def find_data_files(location: str) -> list[Path]:
    """Return the files of `FILE`, `PATTERN` (with `*`) or `FOLDER[@CONFIGURATION/SPLIT]`, sorted by name.

    Of several splits in a folder, `train` is the default. Raises DataError if there is no file, if one of them would be
    left out, or if `location` does not select exactly one split; the message lists the splits.
    """
    folder, separator, choice = location.rpartition("@")
    if not separator or _expanded(location).exists():
        folder, choice = location, ""
    path = _expanded(folder)
    if path.is_dir():
        files = _files_of_split(path, choice)
        _check_complete(files)
        return _checked(files, path)
    if choice:
        raise DataError(f"{location}: {folder} is not a folder; @{choice} selects a split of a folder")
    return [path] if path.is_file() else _files_of_pattern(path, location)


def _expanded(location: str) -> Path:
    if not location:
        raise DataError("the name of a file, pattern or folder is empty")
    try:
        return local_path(location)
    except ValueError as error:
        raise DataError(str(error)) from error


def _files_of_pattern(path: Path, location: str) -> list[Path]:
    """Return the data files that match a pattern; hidden ones only if the pattern names them, as a shell does."""
    parts = path.parts
    fixed = next((index for index, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts) - 1)
    root, pattern = Path(*parts[:fixed]), "/".join(parts[fixed:])
    try:
        matches = sorted(root.glob(pattern))
    except ValueError as error:  # such as a**b
        raise DataError(f"{location}: {error}") from error
    is_hidden = any(part.startswith(".") for part in parts[fixed:])
    files = [file for file in matches if _DATA_FILE.fullmatch(file.name) and (is_hidden or not _hidden(file, root))]
    if not files:
        raise DataError(f"{location}: no such file or folder: {path.absolute()}")
    return _checked(files, root)


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _checked(files: list[Path], root: Path) -> list[Path]:
    """Return the files. Raises DataError for one of another type, and for a folder of a partitioned table."""
    for file in files:
        if file.suffix not in SUFFIXES:
            raise DataError(
                f"{file}: a file of this type is not read; convert it to {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
                "or name the files to read"
            )
        column = next((part for part in file.relative_to(root).parts[:-1] if "=" in part), "")
        if column:
            raise DataError(
                f"{file}: the column in the folder name {column!r} is not read; write it into the file, or name each "
                "file to read it without the column"
            )
    return files


def _check_complete(files: Sequence[Path]) -> None:
    """Raise DataError for a file `NAME-00000-of-00004` without the three others."""
    matches = ((file.parent, _SHARD.fullmatch(file.stem)) for file in files)
    shards = Counter((folder, match[1], match[2]) for folder, match in matches if match)
    for (folder, name, total), number in shards.items():
        if number < int(total):
            raise DataError(
                f"{folder}: {number} of the {int(total)} files {name}-*-of-{total} exist; download the others, or name "
                "the files to read"
            )


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
    splits: dict[str, list[Path]] = {}
    listed: list[str] = []
    try:
        for configuration in _configurations(card):
            name, base = configuration.get("config_name", "default"), folder / str(configuration.get("data_dir") or "")
            for split, patterns in _patterns_by_split(configuration.get("data_files")):
                listed += patterns
                files = sorted({file for pattern in patterns for file in base.glob(pattern) if file.is_file()})
                if files:  # parts of the dataset may not be downloaded
                    splits[f"{name}/{split}"] = files
            if configuration.get("data_files") is None and base != folder:
                splits |= {f"{name}/{split}": files for split, files in _splits_by_name(base).items()}
    except DataError:
        raise
    except (ValueError, NotImplementedError) as error:  # such as an absolute pattern
        raise DataError(f"{card}: {error}; correct it, or name the files to read") from error
    if listed and not splits:
        raise DataError(f"{card}: none of the data_files {', '.join(listed)} exists; download them, or name the files")
    return splits


def _configurations(card: Path) -> list[dict[str, Any]]:
    """Return the `configs` in the header of a card; empty without one. Raises ValueError."""
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    if not text.startswith("---"):
        return []
    try:
        header = yaml.safe_load(text.split("\n---", 1)[0])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"the header is not valid YAML: {str(error).splitlines()[0]}") from error
    configurations = (header.get("configs") if isinstance(header, dict) else None) or []
    if not isinstance(configurations, list) or not all(isinstance(entry, dict) for entry in configurations):
        raise ValueError(f"configs must be a list of objects, got {short_repr(configurations)}")
    return configurations


def _patterns_by_split(data_files: Any) -> list[tuple[str, list[str]]]:
    """Return (split, patterns) of a card's `data_files`: a pattern, a list, or a list of `{split, path}`.

    Raises ValueError for another value.
    """
    entries = data_files if isinstance(data_files, list) else [] if data_files is None else [data_files]
    if not entries or all(isinstance(entry, str) for entry in entries):
        return [("train", entries)] if entries else []
    pairs = [(entry.get("split", "train"), entry.get("path")) for entry in entries if isinstance(entry, dict)]
    listed: list[tuple[Any, list[Any]]] = [(split, path if isinstance(path, list) else [path]) for split, path in pairs]
    patterns: Iterable[Any] = (pattern for _, paths in listed for pattern in paths)
    texts = (*(split for split, _ in listed), *patterns)
    if len(listed) < len(entries) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"data_files must be patterns, or a list of {{split, path}}, got {short_repr(data_files)}")
    return listed


def _splits_by_name(folder: Path) -> dict[str, list[Path]]:
    """Return split -> files by a folder `train`, a name `SPLIT-00000-of-00004` or `train.jsonl`; others are `train`."""
    splits: defaultdict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        if _hidden(file, folder) or file.name in _NOT_DATA:
            continue
        if file.is_dir():
            if file.is_symlink():
                raise DataError(f"{file}: a link to a folder is not followed; name the folder {file.resolve()}")
            continue
        if _DATA_FILE.fullmatch(file.name):
            parts = file.relative_to(folder).parts[:-1]
            matches = [*map(_SPLIT.match, parts), _SHARD.fullmatch(file.stem), _SPLIT.match(file.name)]
            splits[next((match.group(1) for match in matches if match), "train")].append(file)
    return dict(splits)
