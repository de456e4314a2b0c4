"""Turns public datasets into the files that stages read: converted, cleaned, compared, and accounted for (paper §4.2).

Above layouts.py, answer_rules.py, decontaminate.py and near_duplicates.py, which decide; this file reads and writes.
Two passes, each a row at a time:

1. Each input file by itself becomes a part: converted, with the rules that look at one row alone. A part is kept under
   the hash of all that it depends on, so that work that was interrupted, or that is repeated with other settings, does
   not read that file again.
2. All parts together: benchmarks, near duplicates, sampled answers. What is left is written aside, read back as a
   stage would, and renamed into a folder that is named by the hash of everything that went in.
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

from rstar2_train.data.prepare.answer_rules import SampledAnswers, checked_integer
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.decontaminate import Benchmarks
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.near_duplicates import NearDuplicates
from rstar2_train.data.prepare.normalize import normalized_words
from rstar2_train.data.prepare.records import DatasetLayout, Holds, RemovedRow, Row, as_json, compared_text, identity
from rstar2_train.data.prepare.report import RemovalReport
from rstar2_train.data.problems import read_conversations, read_problems
from rstar2_train.data.readers import DataError, read_rows
from rstar2_train.utils.files import write_atomically

VERSION = 1
"""Raise when the same input gives other bytes: what an older version made is then not taken for this one's."""
REPORT = "report.json"
FILES: Mapping[Holds, str] = {
    "training problems": "problems.jsonl",
    "benchmark": "benchmark.jsonl",
    "conversations": "conversations.jsonl",
}
"""Name of the prepared file."""
Watch = Callable[[str, int, int | None], None]
"""Told now and then: what is done, how many of it are done, and of how many if that is known."""
_TELL_EVERY = 500


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """Files of one layout."""

    layout: DatasetLayout
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PreparedDataset:
    """What `prepare` and `decontaminate` leave."""

    file: Path
    report: dict[str, Any]
    reused: bool
    """It was there already, from the same input and settings."""


def prepare(
    sources: Sequence[DatasetSource],
    *,
    out: Path,
    against: Sequence[Path] = (),
    sampled: Path | None = None,
    settings: PrepareSettings | None = None,
    watch: Watch = lambda *_: None,
) -> PreparedDataset:
    """Make `out/HASH/{problems,benchmark,conversations}.jsonl` and the report beside it from `sources`, in their order.

    `against`: files of benchmarks. `sampled`: rows `{id, answers}`. Raises DataError for unusable input, and OSError.
    """
    settings = settings or PrepareSettings()
    holds = _one_kind(sources)
    if holds == "benchmark" and (against or sampled):
        raise DataError("benchmarks are converted as they are: they take no --against and no --sampled")
    if holds == "conversations" and sampled:
        raise DataError("--sampled confirms the answers of problems; these sources are conversations")
    if sampled and not any(source.layout.sampled for source in sources):
        names = ", ".join(sorted(name for name, layout in LAYOUTS.items() if layout.sampled))
        raise DataError(f"--sampled applies to {names} (paper §4.2), and none of the sources is one of them")
    parts = [
        _part(source.layout, file, out=out, max_digits=settings.max_digits, watch=watch)
        for source in sources
        for file in source.files
    ]
    inputs = {
        "parts": [part.stem for part in parts],
        "against": [_digest(path, watch) for path in against],
        "sampled": _digest(sampled, watch) if sampled else None,
        "settings": asdict(settings),
    }
    folder = out / _hash(inputs)
    done = _already(folder, FILES[holds])
    if done is not None:
        return done
    account = RemovalReport()
    for part in parts:
        account.add(RemovalReport.load(part.with_suffix(".json")))
    total = account.kept.total()
    removed: dict[int, RemovedRow] = {}
    if holds != "benchmark":
        answers = SampledAnswers(sampled, agree=settings.agree) if sampled else None
        benchmarks = read_benchmarks(against, watch)
        rows = _watched(_rows_of(parts), "comparing", total, watch)
        removed = _compare(rows, benchmarks=benchmarks, answers=answers, similarity=settings.similarity, holds=holds)
    with _made_whole(folder) as aside:
        with (aside / FILES[holds]).open("w", encoding="utf-8", newline="\n") as file:
            for index, row in enumerate(_watched(_rows_of(parts), "writing", total, watch)):
                if index in removed:
                    account.remove(
                        removed[index], source=row["source"], at=row["id"], text=compared_text(row, row["id"])
                    )
                else:
                    file.write(_line(row))
        report = {"version": VERSION, "holds": holds, "inputs": inputs} | account.as_json()
        _finish(aside / FILES[holds], report, holds)
    return PreparedDataset(folder / FILES[holds], report, reused=False)


def decontaminate(
    files: Sequence[Path], *, out: Path, against: Sequence[Path], watch: Watch = lambda *_: None
) -> PreparedDataset:
    """Make `out/HASH/decontaminated.jsonl`: the rows of `files` that share no eight words in a row with a benchmark.

    Rows are problems or conversations and stay as they are. Raises DataError for unusable input, and OSError.
    """
    inputs = {"files": [_digest(file, watch) for file in files], "against": [_digest(path, watch) for path in against]}
    folder, name = out / _hash(inputs), "decontaminated.jsonl"
    done = _already(folder, name)
    if done is not None:
        return done
    benchmarks, account = read_benchmarks(against, watch), RemovalReport()
    with _made_whole(folder) as aside:
        with (aside / name).open("w", encoding="utf-8", newline="\n") as file:
            for path in files:
                for line, row in _watched(read_rows(path), f"reading {path.name}", None, watch):
                    account.read[path.name] += 1
                    text = compared_text(row, f"{path}:{line}")
                    result, _ = named(_contaminated(benchmarks, normalized_words(text)) or row)
                    if isinstance(result, RemovedRow):
                        account.remove(result, source=path.name, at=f"{path.name}:{line}", text=text)
                    else:
                        file.write(_line(result))
        report = {"version": VERSION, "inputs": inputs} | account.as_json()
        _finish(aside / name, report, None)
    return PreparedDataset(folder / name, report, reused=False)


def read_benchmarks(paths: Sequence[Path], watch: Watch = lambda *_: None) -> Benchmarks:
    """Every problem of these files, to compare with. Raises DataError."""
    benchmarks = Benchmarks()
    for path in paths:
        for line, row in _watched(read_rows(path), f"reading {path.name}", None, watch):
            benchmarks.add(normalized_words(compared_text(row, f"{path}:{line}")), f"{path.name}:{line}")
    return benchmarks


def converted(layout: DatasetLayout, row: dict[str, Any], where: str, *, max_digits: int) -> Row | RemovedRow:
    """A row of a dataset in the project's form, after the rules that look at one row alone. Raises DataError."""
    try:
        result = layout.convert(row, where)
    except DataError as error:
        fields = ", ".join(row) or "none"
        raise DataError(f"{error}; layout {layout.name} is {layout.dataset}, this row's fields are {fields}") from error
    if layout.holds == "training problems" and not isinstance(result, RemovedRow):
        answer = checked_integer(result["answer"], max_digits=max_digits)
        return answer if isinstance(answer, RemovedRow) else result | {"answer": answer}
    return result


def named(row: Row | RemovedRow) -> tuple[Row | RemovedRow, str]:
    """A row with its identity; one that cannot be written becomes removed."""
    try:
        return row, "" if isinstance(row, RemovedRow) else identity(row)
    except UnicodeEncodeError as error:
        return RemovedRow("not-text", f"{error.object[error.start : error.end]!a}"), ""


def _one_kind(sources: Sequence[DatasetSource]) -> Holds:
    kinds = {source.layout.holds for source in sources}
    if len(kinds) != 1:
        described = ", ".join(f"{source.layout.name} ({source.layout.holds})" for source in sources)
        raise DataError(f"the sources must be of one kind, and there must be one: {described or 'none given'}")
    return kinds.pop()


def _part(layout: DatasetLayout, file: Path, *, out: Path, max_digits: int, watch: Watch) -> Path:
    """The part of one input file, made when it is not there; its account lies beside it and is written last."""
    key = {"layout": layout.name, "file": _digest(file, watch), "name": file.name, "maxDigits": max_digits}
    path = out / "parts" / f"{_hash(key)}.jsonl"
    if path.is_file() and path.with_suffix(".json").is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    account, seen = RemovalReport(), set[str]()
    rows = _watched(read_rows(file, columns=layout.columns), f"reading {layout.name}: {file.name}", None, watch)
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as part:
            for line, given in rows:
                account.read[layout.name] += 1
                row, name = named(converted(layout, given, f"{file}:{line}", max_digits=max_digits))
                if name in seen and layout.holds != "benchmark":
                    row = RemovedRow("repeated", "as an earlier row of the file")
                if isinstance(row, RemovedRow):
                    account.remove(row, source=layout.name, at=f"{file.name}:{line}", text=as_json(given))
                    continue
                seen.add(name)
                identified = {"id": f"{layout.name}-{row.get('id', name)}"}
                part.write(_line(identified | {k: v for k, v in row.items() if k != "id"} | {"source": layout.name}))
            part.flush()
            os.fsync(part.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    write_atomically(path.with_suffix(".json"), json.dumps(account.as_json(), ensure_ascii=False, indent=1) + "\n")
    return path


def _compare(
    rows: Iterable[Row], *, benchmarks: Benchmarks, answers: SampledAnswers | None, similarity: float, holds: Holds
) -> dict[int, RemovedRow]:
    """Index of each row that goes -> why, by the rules that look at more than the row. Raises DataError."""
    near, members = NearDuplicates(similarity=similarity), list[tuple[int, str]]()
    removed, unsampled = dict[int, RemovedRow](), dict[int, RemovedRow]()
    seen, confirmed = set[str](), 0
    for index, row in enumerate(rows):
        said, content = normalized_words(compared_text(row, row["id"])), row["id"].removeprefix(row["source"])
        why = (
            RemovedRow("repeated", "as a row of an earlier file")
            if content in seen
            else _contaminated(benchmarks, said)
        )
        seen.add(content)
        if why is None and answers is not None and LAYOUTS[row["source"]].sampled:
            why = answers.check(row["id"], row["answer"])
            confirmed += why is None
        if why is not None and why.rule == "not-sampled":  # as a rule because it was already known to be a duplicate
            unsampled[index], why = why, None
        if why is not None:
            removed[index] = why
        elif holds == "training problems":
            near.add(said, row["answer"])
            members.append((index, row["id"]))
    if answers is not None and not confirmed:
        raise DataError("the sampled answers confirm no problem at all: are its ids those that `prepare` wrote?")
    for member, duplicate in near.find().items():
        of = members[duplicate.of][1]
        removed[members[member][0]] = RemovedRow("near-duplicate", f"of {of}, similarity {duplicate.similarity:.2f}")
    return unsampled | removed


def _contaminated(benchmarks: Benchmarks, said: list[str]) -> RemovedRow | None:
    overlap = benchmarks.overlap(said)
    return RemovedRow("contaminated", f"{overlap.benchmark}: {overlap.gram}") if overlap else None


def _rows_of(parts: Sequence[Path]) -> Iterator[Row]:
    """The rows of all parts; one may have lost every row, which is no error."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _finish(file: Path, report: dict[str, Any], holds: Holds | None) -> None:
    """Read the new file as a stage will, and write the report beside it. Raises DataError when no row is left."""
    if not report["kept"]["all"]:
        rules = ", ".join(f"{rule} {entry['rows']['all']}" for rule, entry in report["removed"].items())
        raise DataError(f"no row is left of {report['read']['all']}: {rules}")
    if holds is not None:
        deque(read_conversations(file) if holds == "conversations" else read_problems(file), maxlen=0)
    report["output"] = {"file": file.name, "sha256": _digest(file)}
    write_atomically(file.with_name(REPORT), json.dumps(report, ensure_ascii=False, indent=1) + "\n")


def _already(folder: Path, name: str) -> PreparedDataset | None:
    """What an earlier run made of the same input. Raises DataError when it has been changed since."""
    if not folder.exists():
        return None
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    file = folder / name
    if not file.is_file() or _digest(file) != report["output"]["sha256"]:
        raise DataError(f"{file}: changed since it was made; remove {folder}, or choose another --out")
    return PreparedDataset(file, report, reused=True)


@contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when all is done, and is removed when not."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)  # of a process with this number that was killed
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _watched(rows: Iterable[Any], what: str, total: int | None, watch: Watch) -> Iterator[Any]:
    count = 0
    for count, row in enumerate(rows, start=1):
        yield row
        if count % _TELL_EVERY == 0:
            watch(what, count, total)
    watch(what, count, total or count)


def _digest(path: Path, watch: Watch = lambda *_: None) -> str:
    """SHA-256 of a file's bytes. Raises DataError when it is missing."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    found, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            found.update(chunk)
            done += len(chunk)
            watch(f"hashing {path.name}", done, size)
    return found.hexdigest()


def _hash(inputs: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that name what is made of these inputs by this version."""
    return hashlib.sha256(json.dumps({"version": VERSION, **inputs}, sort_keys=True).encode()).hexdigest()[:16]


def _line(row: Row) -> str:
    return as_json(row) + "\n"
