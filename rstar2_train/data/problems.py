"""Reads problems from data files. Every error names the file, the line and the field.

`sources.py` validates all files of a job with these functions before the job starts. Each stage reads its `data` with
them. One row is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2_train.data.readers import (
    MEDIA_FIELDS,
    DataError,
    check_characters,
    check_spelling,
    check_text,
    check_written,
    flag_field,
    is_gap,
    is_set,
    json_value,
    known_answer,
    read_rows,
    slice_field,
    text_field,
)
from rstar2_train.rewards.answer_forms import form_of, form_of_row
from rstar2_train.tools.remote_schema import declared_signature
from rstar2_train.tools.sandbox_program import MAX_FILES_BYTES, SourceError
from rstar2_train.utils.json_steps import MAX_ITEMS, MAX_STRUCTURE_BYTES, JsonTooLarge, read_json
from rstar2_train.utils.spelling import spelled
from rstar2_train.utils.text import short_repr

__all__ = ["DataError", "Problem", "read_problems"]


INLINE_DATA = 1 << 20
"""Characters of `data` up to which it may have any form: a rollout parses longer data in short steps."""
LOST_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(MEDIA_FIELDS, "models read text only"),
    **dict.fromkeys(("choices", "options", "context", "passage"), "write them in the problem"),
    **dict.fromkeys(("system", "system_prompt"), "set spec.model.systemPrompt"),
    **dict.fromkeys(("messages", "prompt"), "write the text of the user in problem"),
    **dict.fromkeys(("tool", "tool_names"), "rename it to tools"),
    **dict.fromkeys(("rewards", "reward_model"), "rename it to reward, the name of one of spec.rewards"),
    "file": "rename it to files",
    **dict.fromkeys(
        (
            *("tests", "test_cases", "test_list", "public_tests", "private_tests", "hidden_tests"),
            *("public_test_cases", "private_test_cases"),
        ),
        "write them in data, as {tests: [{input, output}]}",
    ),
    **dict.fromkeys(("starter_code", "instruction"), "write it in the problem"),
    **dict.fromkeys(("answers", "unit", "units"), "write one known answer, with its unit, in answer"),
    "tolerance": "set the tolerance of one of spec.rewards",
    "environment": "set spec.environments",
    **dict.fromkeys(("weight", "sample_weight"), "rows have no weight: repeat or remove rows"),
}
"""Fields of a row that would change the problem or its reward -> remedy."""
_LOST_NAMES = tuple(LOST_FIELDS)


FIELDS = ("id", "problem", "answer", "slice", "hard", "tools", "reward", "files", "data", "functions")
"""Fields of a row, besides those of an `AnswerForm`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a known answer, or a request that a benchmark checks in its own form."""

    id: str
    problem: str
    answer: str
    """Known answer, or the text of an `AnswerForm`."""
    slice: str = ""
    """Slice of the report that counts the problem, such as a level; empty: none."""
    hard: bool = False
    """Whether the report also counts the problem in pass@1 of hard problems."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that the row allows; None: all tools of the job."""
    reward: str = ""
    """Name of the reward; empty: the job's first."""
    files: tuple[tuple[str, str], ...] = ()
    """Name in the sandbox and path of each file that function tools and checkers read."""
    data: str = ""
    """Further data of the row for its checker, as JSON; empty: none."""
    functions: str = ""
    """Functions that the row declares instead of the job's tools, as a JSON list; empty: the row declares nothing. With
    `[]` the row offers no tool."""

    @property
    def has_own_tools(self) -> bool:
        """Whether the calls of this row differ from those of other rows."""
        return self.tools is not None or bool(self.files) or bool(self.functions)

    def read_files(self) -> dict[str, bytes]:
        """Return the content of the row's files by name. Raises OSError."""
        return {name: Path(path).read_bytes() for name, path in self.files}

    def to_row(self) -> dict[str, Any]:
        """Return the row of a data file; unset fields of tools and reward are left out. An empty list is set."""
        row = asdict(self)
        extras: dict[str, Any] = {
            "tools": None if self.tools is None else list(self.tools),
            "reward": self.reward or None,
            "files": dict(self.files) or None,
            "data": json.loads(self.data) if self.data else None,
            "functions": json.loads(self.functions) if self.functions else None,
        }
        kept = {name: value for name, value in extras.items() if value is not None}
        return {name: value for name, value in row.items() if name not in extras} | kept

    @property
    def raw_prompt(self) -> bool:
        """Whether the prompt is the problem text alone, because the job's prompts request a boxed answer."""
        return form_of(self.answer) is not None


def check_lost_fields(row: Mapping[str, Any], where: str) -> None:
    """Raise DataError for a field of a row that would change the problem or its reward, and is not read."""
    check_spelling(row, FIELDS, where)
    problem = row.get("problem")
    for name, _ in spelled(row, ("question",)):
        if not is_gap(problem) and not is_gap(row[name]) and problem != row[name]:
            raise DataError(
                f"{where}: {name} would be lost, because the row has a problem too: write one text in problem"
            )
    for name, field in spelled(row, _LOST_NAMES):
        if is_set(row, name) and (field, row[name]) != ("weight", 1):
            raise DataError(f"{where}: {name} is no part of a problem, and would be lost: {LOST_FIELDS[field]}")


def read_problems(path: Path) -> Iterator[Problem]:
    """Yield the problems of a file with rows `{problem, answer, id?, slice?, hard?, ...}`, in file order.

    A row may also have `tools` (names), `reward` (a name), `files` (name in the sandbox: path relative to the data
    file) and `data` (any JSON value for its checker).

    A row without `id` gets the id `<file stem>-<line>`. An answer may be a number. Instead of `answer`, a row may have
    the field of an `AnswerForm`, such as `instructions` of IFEval.
    Raises DataError, which names file and line, for an invalid row, a duplicate id or an empty file.
    """
    seen: dict[str, int] = {}
    for line, row in read_rows(path):
        yield read_problem(row, path, line, seen)


def read_problem(row: dict[str, Any], path: Path, line: int, seen: dict[str, int]) -> Problem:
    """Return the problem of a row. `seen`: id -> line of the rows of its file before it, to which the row is added.

    Raises DataError as `read_problems`.
    """
    where = f"{path}:{line}"
    check_lost_fields(row, where)
    problem = Problem(
        id=_label(row, "id", where) or f"{path.stem}-{line}",
        problem=_problem(row, where),
        answer=check_characters(_answer(row, where), f"{where}: answer"),
        slice=check_characters(slice_field(row, "slice", where), f"{where}: slice"),
        hard=flag_field(row, "hard", where),
        tools=_tools(row, where),
        reward=_label(row, "reward", where),
        files=_files(row, where, folder=path.parent),
        data=_data(row, where),
        functions=_functions(row, where),
    )
    if problem.id in seen:
        raise DataError(
            f"{where}: duplicate id {problem.id!r}, first used in line {seen[problem.id]}; ids must be unique"
        )
    seen[problem.id] = line
    return problem


def _problem(row: dict[str, Any], where: str) -> str:
    problem = _not_blank(text_field(row, "problem", where), "problem", where)
    return check_written(check_text(problem, f"{where}: problem"), f"{where}: problem")


def _label(row: dict[str, Any], field: str, where: str) -> str:
    """Return a text that names or groups rows; empty: the row has none."""
    return check_characters(text_field(row, field, where, default=""), f"{where}: {field}")


def _not_blank(text: str, field: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: {field} must be a non-empty text, got {short_repr(text)}")
    return text


def _answer(row: dict[str, Any], where: str) -> str:
    """Return the answer of a row as text."""
    form = form_of_row(row)
    try:
        if form is not None:
            if row.get("answer") is not None:
                raise ValueError(f"a row has an answer or {form.field}, not both")
            return form.encode(json_value(row[form.field], f"{where}: {form.field}"))
        answer = text_field(row, "answer", where)
        form = form_of(answer)
        if form is not None:
            return form.check(answer)
        return _not_blank(known_answer(answer, f"{where}: answer"), "answer", where)
    except ValueError as error:
        raise error if isinstance(error, DataError) else DataError(f"{where}: {error}") from error


def _data(row: dict[str, Any], where: str) -> str:
    """Return the further data of a row as JSON; empty: none. Raises DataError for data that no rollout can parse."""
    data = row.get("data")
    if data != "" and is_gap(data):
        return ""
    data = json_value(data, f"{where}: data")
    text = check_characters(json.dumps(data, ensure_ascii=False), f"{where}: data")
    if len(text) > INLINE_DATA:
        try:
            read_json(text.encode(), max_fields=MAX_ITEMS)
        except JsonTooLarge as error:
            raise DataError(
                f"{where}: data has {len(text):,} characters, and more than {MAX_ITEMS:,} objects, fields, or items of "
                f"a list, or more than {MAX_STRUCTURE_BYTES >> 20} MiB besides its texts: write lists as texts"
            ) from error
    return text


def _tools(row: dict[str, Any], where: str) -> tuple[str, ...] | None:
    names = row.get("tools")
    if is_gap(names):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: tools must be a list of names of spec.tools, got {short_repr(names)}")
    return tuple(names)


def _functions(row: dict[str, Any], where: str) -> str:
    """Return the functions of a row as JSON; empty: the row has no such field."""
    if is_gap(row.get("functions")):
        return ""
    functions = json_value(row["functions"], f"{where}: functions")
    if not isinstance(functions, list):
        raise DataError(
            f"{where}: functions must be a list of {{name, description, parameters}}, got {short_repr(functions)}"
        )
    try:
        names = [declared_signature(function)["function"]["name"] for function in functions]
    except SourceError as error:
        raise DataError(f"{where}: functions must be a list of {{name, description, parameters}}: {error}") from error
    if len(set(names)) < len(names):
        raise DataError(f"{where}: functions must have different names, got {', '.join(names)}")
    return check_characters(json.dumps(functions, ensure_ascii=False), f"{where}: functions")


def _files(row: dict[str, Any], where: str, *, folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the names and absolute paths of a row's files."""
    files = row.get("files")
    if is_gap(files):
        return ()
    if not isinstance(files, dict):
        raise DataError(f"{where}: files must be an object of name: path, got {short_repr(files)}")
    paths = {}
    for name, value in files.items():
        if value is None:  # Parquet adds the names of other rows
            continue
        if name != Path(name).name or name.startswith(".") or not isinstance(value, str):
            raise DataError(
                f"{where}: files: {short_repr(name)} must be a file name without a folder, and its value a path"
            )
        try:
            path = (folder / value).resolve()
            is_file = path.is_file()
        except (OSError, ValueError) as error:  # a name that no file system has
            raise DataError(f"{where}: files: {name}: {short_repr(value)} is no path: {error}") from error
        if not is_file:
            raise DataError(f"{where}: files: {name}: no such file: {path}")
        paths[name] = path
    size = sum(path.stat().st_size for path in paths.values())
    if size > MAX_FILES_BYTES:
        raise DataError(f"{where}: files have {size:,} bytes; the limit of a row is {MAX_FILES_BYTES:,}")
    return tuple((name, str(path)) for name, path in paths.items())
