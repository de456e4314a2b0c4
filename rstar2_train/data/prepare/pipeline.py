"""Prepares public datasets as training data: converts, cleans and compares the rows, and reports removals (paper §4.2).

Reads and writes the files; `layouts.py`, `answer_rules.py`, `decontaminate.py` and `near_duplicates.py` decide. There
are two passes, each with one row in memory:

1. Each input file becomes a part: its converted rows that pass the rules for single rows. Parts are cached by a hash of
   all their inputs. An interrupted run, or a run with other settings, reuses them.
2. All rows of the parts are compared with benchmarks, sampled answers and each other. The remaining rows go into a
   temporary folder, are validated as a stage would, and the folder is renamed to the hash of all inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2_train.data.arrow_rows import column_names
from rstar2_train.data.demonstrations import read_demonstrations
from rstar2_train.data.prepare.answer_rules import SampledAnswers, integer_answer
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.decontaminate import Benchmarks
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.near_duplicates import NearDuplicates
from rstar2_train.data.prepare.normalize import normalized_words
from rstar2_train.data.prepare.records import (
    DatasetKind,
    DatasetLayout,
    RemovedRow,
    Row,
    comparison_text,
    content_hash,
    exact_json,
    to_json,
)
from rstar2_train.data.prepare.report import RemovalReport
from rstar2_train.data.problems import read_problems
from rstar2_train.data.readers import DataError, read_rows, reading
from rstar2_train.utils.files import write_atomically

VERSION = 6
"""Increment when the same input gives other bytes, so that the output of an older version is not reused."""
REPORT = "report.json"
FILES: Mapping[DatasetKind, str] = {
    "training problems": "problems.jsonl",
    "benchmark": "benchmark.jsonl",
    "conversations": "conversations.jsonl",
}
"""Name of the prepared file."""
ProgressCallback = Callable[[str, int, int | None], None]
"""`callback(activity, done, total)`; `total` is None if it is unknown."""
_ROWS_PER_CALLBACK = 500


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """Files of one layout."""

    layout: DatasetLayout
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """The output of `prepare` or `decontaminate`."""

    file: Path
    report: dict[str, Any]
    reused: bool
    """Whether an earlier run with the same input and settings wrote the file."""


def prepare(
    sources: Sequence[DatasetSource],
    *,
    out: Path,
    against: Sequence[Path] = (),
    sampled: Path | None = None,
    settings: PrepareSettings | None = None,
    on_progress: ProgressCallback = lambda *_: None,
) -> PreparedDataset:
    """Write `out/HASH/{problems,benchmark,conversations}.jsonl` and `report.json` from `sources`, in their order.

    `against`: files of benchmarks. `sampled`: file of rows `{id, answers}`. Raises DataError for invalid input, and
    OSError.
    """
    settings = settings or PrepareSettings()
    kind = _common_kind(sources)
    _check_options(kind, sources, against=against, sampled=sampled)
    parts = [
        _write_part(source.layout, file, out=out, max_digits=settings.max_digits, on_progress=on_progress)
        for source in sources
        for file in source.files
    ]
    inputs = {
        "parts": [part.stem for part in parts],
        "against": [_sha256(path, on_progress) for path in against],
        "sampled": _sha256(sampled, on_progress) if sampled else None,
        "settings": asdict(settings),
    }
    folder = out / _hash(inputs)
    existing = _existing_result(folder, FILES[kind])
    if existing is not None:
        return existing
    if kind == "benchmark":
        _reject_repeated_ids(parts, [file for source in sources for file in source.files])
    removals = RemovalReport()
    for part in parts:
        removals.add(RemovalReport.load(part.with_suffix(".json")))
    total = removals.kept.total()
    removed: dict[int, RemovedRow] = {}
    if kind != "benchmark":
        answers = SampledAnswers(sampled, agree=settings.agree) if sampled else None
        benchmarks = read_benchmarks(against, on_progress)
        rows = _with_progress(_rows_of(parts), "comparing", total, on_progress)
        removed = _compare(rows, benchmarks=benchmarks, answers=answers, similarity=settings.similarity, kind=kind)
    with _atomic_folder(folder) as aside:
        with (aside / FILES[kind]).open("w", encoding="utf-8", newline="\n") as file:
            for index, row in enumerate(_with_progress(_rows_of(parts), "writing", total, on_progress)):
                if index in removed:
                    text = comparison_text(row, row["id"])
                    removals.remove(removed[index], source=row["source"], at=row["id"], text=text)
                else:
                    file.write(_json_line(row))
        report = {"version": VERSION, "holds": kind, "inputs": inputs} | removals.as_json()
        _validate_and_report(aside / FILES[kind], report, kind)
    return PreparedDataset(folder / FILES[kind], report, reused=False)


def decontaminate(
    files: Sequence[Path], *, out: Path, against: Sequence[Path], on_progress: ProgressCallback = lambda *_: None
) -> PreparedDataset:
    """Write `out/HASH/decontaminated.jsonl`: the rows of `files` that share no eight consecutive words with a
    benchmark.

    Rows are problems or conversations and stay unchanged. Raises DataError for invalid input, and OSError.
    """
    inputs = {
        "files": [_sha256(file, on_progress) for file in files],
        "against": [_sha256(path, on_progress) for path in against],
    }
    folder, name = out / _hash(inputs), "decontaminated.jsonl"
    existing = _existing_result(folder, name)
    if existing is not None:
        return existing
    benchmarks, removals = read_benchmarks(against, on_progress), RemovalReport()
    with _atomic_folder(folder) as aside:
        with (aside / name).open("w", encoding="utf-8", newline="\n") as file:
            for path in files:
                for line, row in _with_progress(read_rows(path), f"reading {path.name}", None, on_progress):
                    removals.read[path.name] += 1
                    text = comparison_text(row, f"{path}:{line}")
                    result, _ = identify_row(_contamination(benchmarks, normalized_words(text)) or row)
                    if isinstance(result, RemovedRow):
                        removals.remove(result, source=path.name, at=f"{path.name}:{line}", text=text)
                    else:
                        file.write(exact_json(result, f"{path}:{line}") + "\n")
        report = {"version": VERSION, "inputs": inputs} | removals.as_json()
        _validate_and_report(aside / name, report, None)
    return PreparedDataset(folder / name, report, reused=False)


def read_benchmarks(paths: Sequence[Path], on_progress: ProgressCallback = lambda *_: None) -> Benchmarks:
    """Return the word sequences of all problems in the files. Raises DataError."""
    benchmarks = Benchmarks()
    for path in paths:
        for line, row in _with_progress(read_rows(path), f"reading {path.name}", None, on_progress):
            benchmarks.add(normalized_words(comparison_text(row, f"{path}:{line}")), f"{path.name}:{line}")
    return benchmarks


def convert_row(layout: DatasetLayout, row: dict[str, Any], where: str, *, max_digits: int) -> Row | RemovedRow:
    """Return a row in the format of this project, or its removal by a rule for single rows. Raises DataError."""
    try:
        result = layout.convert(row, where)
        layout.check_unused(row, where)
    except DataError as error:
        fields = ", ".join(row) or "none"
        raise DataError(f"{error}; layout {layout.name} is {layout.dataset}, the row's fields are {fields}") from error
    if layout.kind == "training problems" and not isinstance(result, RemovedRow):
        answer = integer_answer(result["answer"], max_digits=max_digits)
        return answer if isinstance(answer, RemovedRow) else result | {"answer": answer}
    return result


def identify_row(row: Row | RemovedRow) -> tuple[Row | RemovedRow, str]:
    """Return a row and its content hash. A row that cannot be encoded becomes a removal."""
    try:
        return row, "" if isinstance(row, RemovedRow) else content_hash(row)
    except UnicodeEncodeError as error:
        return RemovedRow("not-text", f"{error.object[error.start : error.end]!a}"), ""


def _common_kind(sources: Sequence[DatasetSource]) -> DatasetKind:
    kinds = {source.layout.kind for source in sources}
    if len(kinds) != 1:
        layouts = ", ".join(f"{source.layout.name} ({source.layout.kind})" for source in sources)
        raise DataError(f"all sources must have the same kind, and at least one is required; got {layouts or 'none'}")
    return kinds.pop()


def _check_options(
    kind: DatasetKind, sources: Sequence[DatasetSource], *, against: Sequence[Path], sampled: Path | None
) -> None:
    """Raises DataError for an option that does not apply to the sources."""
    if kind == "benchmark" and (against or sampled):
        raise DataError("--against and --sampled do not apply to benchmarks: no rule removes a benchmark's problems")
    if kind == "conversations" and sampled:
        raise DataError("--sampled verifies answers of problems; the sources are conversations")
    if sampled and not any(source.layout.sampled for source in sources):
        names = ", ".join(sorted(name for name, layout in LAYOUTS.items() if layout.sampled))
        raise DataError(f"--sampled applies to the layouts {names} (paper §4.2); no source has one of them")


def _write_part(
    layout: DatasetLayout, file: Path, *, out: Path, max_digits: int, on_progress: ProgressCallback
) -> Path:
    """Return the part of one input file, and write it if it does not exist. Its removal report is written last."""
    key = {"layout": layout.name, "file": _sha256(file, on_progress), "name": file.name, "maxDigits": max_digits}
    if answers := layout.answers(file):
        key["answers"] = _sha256(answers, on_progress)
    path = out / "parts" / f"{_hash(key)}.jsonl"
    if _has_digest(path, path.with_suffix(".json")):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    removals, seen, names = RemovalReport(), set[str](), dict[str, None]()
    rows = layout.read(file)
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as part:
            for line, raw in _with_progress(rows, f"reading {layout.name}: {file.name}", None, on_progress):
                removals.read[layout.name] += 1
                names.update(dict.fromkeys(raw))
                row, digest = identify_row(convert_row(layout, raw, f"{file}:{line}", max_digits=max_digits))
                if digest in seen and layout.kind != "benchmark":
                    row = RemovedRow("repeated", "same as an earlier row of the file")
                if isinstance(row, RemovedRow):
                    removals.remove(row, source=layout.name, at=f"{file.name}:{line}", text=to_json(raw))
                    continue
                seen.add(digest)
                identity = {"id": f"{layout.name}-{row.get('id', digest)}"}
                part.write(_json_line(identity | {k: v for k, v in row.items() if k != "id"} | {"source": layout.name}))
            part.flush()
            os.fsync(part.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    removals.unused[layout.name] = layout.unused(column_names(file, names))
    report = removals.as_json() | {"output": {"file": path.name, "sha256": _sha256(path)}}
    write_atomically(path.with_suffix(".json"), json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    return path


def _reject_repeated_ids(parts: Sequence[Path], files: Sequence[Path]) -> None:
    """Raise DataError for two rows with the same id; other kinds have ids of their content. `files`: of the parts."""
    seen: dict[str, Path] = {}
    for part, file in zip(parts, files, strict=True):
        for row in _rows_of([part]):
            name = row["id"]
            if name in seen:
                given = name.removeprefix(f"{row['source']}-")
                raise DataError(
                    f"{file}: id {given!r} is also that of another row of {seen[name]}; "
                    "the rows of a benchmark need ids of their own, and different texts if they have none"
                )
            seen[name] = file


def _compare(
    rows: Iterable[Row], *, benchmarks: Benchmarks, answers: SampledAnswers | None, similarity: float, kind: DatasetKind
) -> dict[int, RemovedRow]:
    """Return index -> removal by the rules that compare a row with other data. Raises DataError."""
    near, members = NearDuplicates(similarity=similarity), list[tuple[int, str]]()
    removed, unsampled = dict[int, RemovedRow](), dict[int, RemovedRow]()
    seen, confirmed = set[str](), 0
    for index, row in enumerate(rows):
        words, content = normalized_words(comparison_text(row, row["id"])), row["id"].removeprefix(row["source"])
        if content in seen:
            removal: RemovedRow | None = RemovedRow("repeated", "same as a row of an earlier file")
        else:
            removal = _contamination(benchmarks, words)
        seen.add(content)
        if removal is None and answers is not None and LAYOUTS[row["source"]].sampled:
            removal = answers.check(row["id"], row["answer"])
            confirmed += removal is None
        if removal is not None and removal.rule == "not-sampled":  # near duplicates are usually not sampled
            unsampled[index], removal = removal, None
        if removal is not None:
            removed[index] = removal
        elif kind == "training problems":
            near.add(words, row["answer"])
            members.append((index, row["id"]))
    if answers is not None and not confirmed:
        raise DataError(
            "--sampled: the sampled answers confirm no problem; the ids must be those that `rstar2 data prepare` wrote"
        )
    for member, duplicate in near.find().items():
        original = members[duplicate.of][1]
        reason = f"of {original}, similarity {duplicate.similarity:.2f}"
        removed[members[member][0]] = RemovedRow("near-duplicate", reason)
    return unsampled | removed


def _contamination(benchmarks: Benchmarks, words: list[str]) -> RemovedRow | None:
    overlap = benchmarks.overlap(words)
    return RemovedRow("contaminated", f"{overlap.benchmark}: {overlap.gram}") if overlap else None


def _rows_of(parts: Sequence[Path]) -> Iterator[Row]:
    """Yield the rows of all parts. A part without rows is not an error."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _validate_and_report(file: Path, report: dict[str, Any], kind: DatasetKind | None) -> None:
    """Validate the new file as a stage would, and write the report next to it. Raises DataError if no row remains."""
    if not report["kept"]["all"]:
        rules = ", ".join(f"{rule} {entry['rows']['all']}" for rule, entry in report["removed"].items())
        raise DataError(f"the rules removed all {report['read']['all']} rows: {rules}")
    if kind is not None:
        deque(read_demonstrations(file) if kind == "conversations" else read_problems(file), maxlen=0)
    report["output"] = {"file": file.name, "sha256": _sha256(file)}
    write_atomically(file.with_name(REPORT), json.dumps(report, ensure_ascii=False, indent=1) + "\n")


def _existing_result(folder: Path, name: str) -> PreparedDataset | None:
    """Return the output of an earlier run on the same input, or None. Raises DataError if its file was modified."""
    if not folder.exists():
        return None
    file = folder / name
    if not _has_digest(file, folder / REPORT):
        raise DataError(f"{file}: modified or deleted since it was written; remove {folder} or set another --out")
    return PreparedDataset(file, json.loads((folder / REPORT).read_text(encoding="utf-8")), reused=True)


def _has_digest(file: Path, report: Path) -> bool:
    """Return whether a file is the one that its report describes."""
    try:
        return bool(json.loads(report.read_text(encoding="utf-8"))["output"]["sha256"] == _sha256(file))
    except (OSError, ValueError, LookupError, TypeError):  # a file is missing, or the report is damaged
        return False


@contextmanager
def _atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success, and removed after an error."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed process with the same process id
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _with_progress(
    rows: Iterable[Any], activity: str, total: int | None, on_progress: ProgressCallback
) -> Iterator[Any]:
    """Yield the rows, and call `on_progress` every `_ROWS_PER_CALLBACK` rows and at the end."""
    count = 0
    for count, row in enumerate(rows, start=1):
        yield row
        if count % _ROWS_PER_CALLBACK == 0:
            on_progress(activity, count, total)
    on_progress(activity, count, total or count)


def _sha256(path: Path, on_progress: ProgressCallback = lambda *_: None) -> str:
    """Return the SHA-256 of a file. Raises DataError if it does not exist or cannot be read."""
    digest, done = hashlib.sha256(), 0
    with reading(path), path.open("rb") as file:
        size = path.stat().st_size
        while chunk := file.read(1 << 24):
            digest.update(chunk)
            done += len(chunk)
            on_progress(f"hashing {path.name}", done, size)
    return digest.hexdigest()


def _hash(inputs: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify the output of these inputs in this version."""
    return hashlib.sha256(json.dumps({"version": VERSION, **inputs}, sort_keys=True).encode()).hexdigest()[:16]


def _json_line(row: Row) -> str:
    return to_json(row) + "\n"
