"""From sources to a prepared file: removed and kept rows, identical bytes, and no partial output."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.benchmarks.ifeval.instructions import Instruction, decode_instructions
from rstar2_train.data.demonstrations import read_demonstrations
from rstar2_train.data.prepare import pipeline
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, PreparedDataset, decontaminate, prepare
from rstar2_train.data.problems import read_problems
from rstar2_train.data.readers import DataError

BENCHMARK = "A rhombus of side 13 has a diagonal of length 24; find the product of its area and its other diagonal."


def _text(index: int) -> str:
    """Return problem number `index`: 20 words that no other problem has."""
    letter = chr(ord("a") + index)
    return " ".join(letter * length for length in range(1, 20)) + f" {index}?"


def _write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _source(layout: str, *files: Path) -> DatasetSource:
    return DatasetSource(LAYOUTS[layout], files)


def _sources(folder: Path) -> list[DatasetSource]:
    """Return sources of two layouts, with a row per rule."""
    dapo = [{"prompt": _text(index), "solution": str(index)} for index in range(4)]
    dapo += [dapo[0], {"prompt": BENCHMARK, "solution": "1200"}, {"prompt": "x", "solution": "9" * 30}]
    omr = [
        {"problem": _text(1), "expected_answer": "1", "problem_type": "has_answer_extracted"},
        {"problem": f"{_text(2)} Prove it.", "expected_answer": "02", "problem_type": "has_answer_extracted"},
        {"problem": _text(5), "expected_answer": "5"},
        {"problem": _text(6), "expected_answer": "6"},
        {"problem": _text(7), "expected_answer": "7"},
        {"problem": _text(8), "expected_answer": "\\pi"},
        {"problem": _text(9), "expected_answer": None},
    ]
    return [
        _source("dapo", _write(folder / "dapo.jsonl", *dapo)),
        _source("openmathreasoning", _write(folder / "omr.jsonl", *omr)),
    ]


def _prepare(folder: Path, sampled: Path | None = None, **more: Any) -> PreparedDataset:
    against = [_write(folder / "bench.jsonl", {"question": BENCHMARK, "answer": "1200"})]
    return prepare(_sources(folder), out=folder / "out", against=against, sampled=sampled, **more)


def _removed(prepared: PreparedDataset) -> dict[str, int]:
    return {rule: entry["rows"]["all"] for rule, entry in prepared.report["removed"].items()}


def _bytes(prepared: PreparedDataset) -> tuple[bytes, bytes, str]:
    return prepared.file.read_bytes(), (prepared.file.parent / "report.json").read_bytes(), prepared.file.parent.name


def _left_behind(out: Path) -> list[Path]:
    return [path for path in out.rglob(".*")] if out.exists() else []


CANDIDATES = {
    "no-gold-answer": 1,
    "enormous-answer": 1,
    "not-an-integer": 1,
    "repeated": 2,
    "contaminated": 1,
    "near-duplicate": 1,
}


def test_prepare_removes_one_row_per_rule_and_reports(tmp_path: Path) -> None:
    """Each rule removes its row, and the report counts it with an example."""
    prepared = _prepare(tmp_path)
    assert [(problem.answer, problem.problem) for problem in read_problems(prepared.file)] == [
        (str(index), _text(index)) for index in (0, 1, 2, 3, 5, 6, 7)
    ]
    report = prepared.report
    assert _removed(prepared) == CANDIDATES
    assert report["read"] == {"all": 14, "dapo": 7, "openmathreasoning": 7}
    assert report["kept"] == {"all": 7, "dapo": 4, "openmathreasoning": 3}
    (contaminated,) = report["removed"]["contaminated"]["examples"]
    assert contaminated["why"] == "bench.jsonl:1: a rhombus of side 13 has a diagonal"
    assert contaminated["text"] == BENCHMARK and contaminated["at"].startswith("dapo-")
    (near,) = report["removed"]["near-duplicate"]["examples"]
    kept = {problem.problem: problem.id for problem in read_problems(prepared.file)}
    assert near["why"] == f"of {kept[_text(2)]}, similarity 0.90"
    first, second = report["removed"]["repeated"]["examples"]
    assert first["at"] == "dapo.jsonl:5" and second["at"].startswith("openmathreasoning-")
    assert json.loads((prepared.file.parent / "report.json").read_text(encoding="utf-8")) == report


def test_prepare_with_sampled_answers_verifies_labels(tmp_path: Path) -> None:
    """Sampled answers verify the labels of the layouts that need it."""
    candidates = {problem.answer: problem.id for problem in read_problems(_prepare(tmp_path).file)}
    answers = {"5": ["5"] * 2, "6": ["5"] * 16}
    rows = [{"id": candidates[label], "answers": sampled_answers} for label, sampled_answers in answers.items()]
    sampled = _write(tmp_path / "answers.jsonl", *rows)
    prepared = _prepare(tmp_path, sampled)
    assert [problem.answer for problem in read_problems(prepared.file)] == ["0", "1", "2", "3", "5"]
    assert _removed(prepared) == {**CANDIDATES, "unverified": 1, "not-sampled": 1}
    stricter = _prepare(tmp_path, _write(tmp_path / "more.jsonl", *rows, {"id": candidates["7"], "answers": ["7"] * 3}),
                        settings=PrepareSettings(agree=3))  # fmt: skip
    assert [problem.answer for problem in read_problems(stricter.file)] == ["0", "1", "2", "3", "7"]


def test_prepare_with_answers_of_other_problems_raises(tmp_path: Path) -> None:
    """Sampled answers that confirm no problem are an error."""
    sampled = _write(tmp_path / "answers.jsonl", {"id": "openmathreasoning-0", "answers": ["1", "1"]})
    with pytest.raises(DataError, match="sampled answers confirm no problem"):
        _prepare(tmp_path, sampled)


def test_prepare_of_same_input_writes_same_bytes(tmp_path: Path) -> None:
    """The output does not depend on the folder. Other settings give another output folder."""
    first, second = _prepare(tmp_path / "a"), _prepare(tmp_path / "b" / "c")
    assert _bytes(first) == _bytes(second) and not second.reused
    assert str(tmp_path) not in _bytes(first)[1].decode()
    other = _prepare(tmp_path / "a", settings=PrepareSettings(similarity=1.0))
    assert other.file.parent != first.file.parent and "near-duplicate" not in _removed(other)


def test_prepare_reuses_existing_result_unless_modified(tmp_path: Path) -> None:
    """An existing result is reused. A modified one is an error and is not overwritten."""
    first = _prepare(tmp_path)
    second = _prepare(tmp_path)
    assert second.reused and (second.file, second.report) == (first.file, first.report)
    content = _bytes(first)
    for path in (first.file.with_name("report.json"), first.file):
        path.write_text("{", encoding="utf-8")
        with pytest.raises(DataError, match="modified or deleted since it was written; remove"):
            _prepare(tmp_path)
        assert path.read_text(encoding="utf-8") == "{"
    shutil.rmtree(first.file.parent)
    for part in (tmp_path / "out" / "parts").iterdir():  # a part is written again
        part.write_text("{", encoding="utf-8")
    assert _bytes(_prepare(tmp_path)) == content


class Killed(BaseException):
    """Simulates the death of the process."""


@pytest.mark.parametrize("at", ["reading openmathreasoning: omr.jsonl", "comparing", "writing"])
def test_prepare_after_interruption_reuses_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """An interruption leaves no partial output. The next run does not read finished input files again."""

    def interrupt(activity: str, result: int, total: int | None) -> None:
        if activity == at:
            raise Killed

    with pytest.raises(Killed):
        _prepare(tmp_path, on_progress=interrupt)
    assert _left_behind(tmp_path / "out") == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parts"]
    read: list[str] = []
    convert = pipeline.convert_row

    def count(layout: Any, *arguments: Any, **more: Any) -> Any:
        read.append(layout.name)
        return convert(layout, *arguments, **more)

    monkeypatch.setattr(pipeline, "convert_row", count)
    resumed = _prepare(tmp_path)
    assert read == (["openmathreasoning"] * 7 if at.startswith("reading") else [])
    assert _bytes(resumed) == _bytes(_prepare(tmp_path / "whole"))


def test_prepare_of_benchmark_keeps_all_rows_and_ids(tmp_path: Path) -> None:
    """No rule for training problems removes a benchmark's row, and ids are retained."""
    rows = [{"problem": "p", "answer": "\\pi", "unique_id": "a/1"}, {"problem": "q", "answer": "2" * 30}]
    prepared = prepare([_source("math500", _write(tmp_path / "m.jsonl", *rows))], out=tmp_path / "out")
    problems = list(read_problems(prepared.file))
    assert [problem.answer for problem in problems] == ["\\pi", "2" * 30] and problems[0].id == "math500-a/1"


def test_prepare_of_transfer_benchmarks_as_published(tmp_path: Path) -> None:
    """GPQA, HMMT and IFEval in their published file formats."""
    columns = ["Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)), "Record ID"]
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerows([columns, ["Which, of\nthese?", 'the "first"', "b", "c", "d", "rec1"]])
    hmmt = {"problem_idx": 1, "answer": "103", "problem_type": ["Algebra"], "problem": "How many?"}
    limits = {"num_words": 20, "relation": "less than"}
    ifeval = {
        "key": 7,
        "prompt": "Describe a door.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [dict.fromkeys(limits), limits],
    }
    pq.write_table(pa.Table.from_pylist([hmmt]), tmp_path / "hmmt.parquet")
    pq.write_table(pa.Table.from_pylist([ifeval]), tmp_path / "ifeval.parquet")
    prepared_problems = {}
    for layout, file in (("gpqa", "gpqa_diamond.csv"), ("hmmt", "hmmt.parquet"), ("ifeval", "ifeval.parquet")):
        prepared = prepare([_source(layout, tmp_path / file)], out=tmp_path / "out")
        prepared_problems[layout] = next(read_problems(prepared.file))
    gpqa_problem, hmmt_problem, ifeval_problem = prepared_problems.values()
    assert (gpqa_problem.id, hmmt_problem.id, ifeval_problem.id) == ("gpqa-rec1", "hmmt-1", "ifeval-7")
    assert "Which, of\nthese?\n\nA) " in gpqa_problem.problem and ') the "first"\n' in gpqa_problem.problem
    assert (hmmt_problem.answer, hmmt_problem.slice, hmmt_problem.raw_prompt) == ("103", "Algebra", False)
    assert (ifeval_problem.problem, ifeval_problem.raw_prompt) == ("Describe a door.", True)
    assert decode_instructions(ifeval_problem.answer) == [
        Instruction("punctuation:no_comma", {}),
        Instruction("length_constraints:number_words", limits),
    ]


def test_prepare_of_parquet_reads_nested_columns(tmp_path: Path) -> None:
    """Nested columns of a Parquet file are read. The error of a wrong layout lists the fields."""
    row = {
        "prompt": [{"content": _text(1), "role": "user"}],
        "reward_model": {"ground_truth": "34", "style": "rule"},
        "extra_info": {"index": "x"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "dapo.parquet")
    prepared = prepare([_source("dapo", tmp_path / "dapo.parquet")], out=tmp_path / "out")
    assert [(problem.problem, problem.answer) for problem in read_problems(prepared.file)] == [(_text(1), "34")]
    with pytest.raises(
        DataError, match=r"dapo\.parquet:1: no messages; .* fields are prompt, reward_model, extra_info"
    ):
        prepare([_source("tulu3", tmp_path / "dapo.parquet")], out=tmp_path / "out")


def _conversation(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(texts)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]}


def test_prepare_compares_conversations_by_user_messages(tmp_path: Path) -> None:
    """Conversations are compared by their user messages."""
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK, "answer": "1200"})
    first = _write(
        tmp_path / "1.jsonl",
        _conversation("hi", "ho"),
        _conversation(BENCHMARK, "1200"),
        _conversation("hi", BENCHMARK),
    )
    second = _write(tmp_path / "2.jsonl", _conversation("hi", "ho"), _conversation("hi", "ha"))
    sources = [_source("tulu3", first), _source("conversations", second)]
    prepared = prepare(sources, out=tmp_path / "out", against=[bench])
    assert [row.messages[1]["content"] for row in read_demonstrations(prepared.file)] == ["ho", BENCHMARK, "ha"]
    assert _removed(prepared) == {"contaminated": 1, "repeated": 1}


def test_decontaminate_keeps_other_rows_unchanged(tmp_path: Path) -> None:
    """Rows without an overlap stay unchanged."""
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK})
    rows = [
        {"question": _text(0), "é": [1]},
        {"problem": f"Now: {BENCHMARK}"},
        _conversation(_text(1), "1"),
        _conversation(BENCHMARK),
    ]
    given = _write(tmp_path / "mine.jsonl", *rows)
    result = decontaminate([given], out=tmp_path / "out", against=[bench])
    assert [json.loads(line) for line in result.file.read_text(encoding="utf-8").splitlines()] == [rows[0], rows[2]]
    assert [example["at"] for example in result.report["removed"]["contaminated"]["examples"]] == [
        "mine.jsonl:2",
        "mine.jsonl:4",
    ]
    assert decontaminate([given], out=tmp_path / "out", against=[bench]).reused
    with pytest.raises(DataError, match=r"odd\.jsonl:1: no problem, question or messages; the fields are x"):
        decontaminate([_write(tmp_path / "odd.jsonl", {"x": 1})], out=tmp_path / "out", against=[bench])
    assert _left_behind(tmp_path / "out") == []


def test_decontaminate_keeps_all_digits(tmp_path: Path) -> None:
    """Numbers stay as they are written; a value without a form in JSON is refused, and a gap becomes null."""
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK})
    numbers = ["3.14159265358979323846264338327950288", "9" * 4500, "1e999", "0.1", "-7", '"number-0"']
    given = tmp_path / "mine.jsonl"
    given.write_text("".join(f'{{"problem": "p{at}", "data": [{number}]}}\n' for at, number in enumerate(numbers)))
    written = decontaminate([given], out=tmp_path / "out", against=[bench]).file.read_text()
    assert written == given.read_text()
    table = pa.table({"problem": ["p", "q"], "level": [None, 2.0], "cost": pa.array([1, 2], pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "mine.parquet")
    result = decontaminate([tmp_path / "mine.parquet"], out=tmp_path / "out", against=[bench])
    assert [json.loads(line) for line in result.file.read_text().splitlines()] == [
        {"problem": "p", "level": None, "cost": 1.0}, {"problem": "q", "level": 2.0, "cost": 2.0},
    ]  # fmt: skip
    for name, value in (("nan", '{"x": NaN}'), ("infinite", "[Infinity]")):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(f'{{"problem": "p", "data": {value}}}\n')
        with pytest.raises(DataError, match=rf"{name}\.jsonl:1: data.* has no form in JSON"):
            decontaminate([path], out=tmp_path / "out", against=[bench])
    pq.write_table(pa.table({"problem": ["p"], "answer": pa.array([b"1"])}), tmp_path / "bytes.parquet")
    with pytest.raises(DataError, match=r"answer: .* has no form in JSON"):
        decontaminate([tmp_path / "bytes.parquet"], out=tmp_path / "out", against=[bench])


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": BENCHMARK.replace(" ", "\n")}]}]},
        {"messages": [{"role": "user", "content": ["Now:", BENCHMARK]}]},
        {"messages": [{"role": "user", "content": "Solve."}], "problem": BENCHMARK},
        {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": BENCHMARK}]},
        {"problem": "", "question": BENCHMARK},
        {"problem": "Solve.", "question": BENCHMARK},
    ],
)
def test_decontaminate_compares_each_text_of_a_row(tmp_path: Path, row: dict[str, Any]) -> None:
    """Texts in parts, in several messages and in several fields are compared."""
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK})
    given = _write(tmp_path / "mine.jsonl", {"problem": _text(0)}, row)
    assert _removed(decontaminate([given], out=tmp_path / "out", against=[bench])) == {"contaminated": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [{"role": "human", "content": BENCHMARK}]}, "messages must be a list of .* texts of role user"),
        ({"messages": [{"from": "human", "value": BENCHMARK}]}, "messages must be a list of .* texts of role user"),
        ({"messages": [{"role": "user", "content": None}]}, "messages must be a list of .* texts of role user"),
        ({"messages": []}, "messages must be a list of .* texts of role user"),
        ({"messages": [BENCHMARK]}, "messages must be a list of .* texts of role user"),
        ({"messages": BENCHMARK}, "messages must be a list of .* texts of role user"),
        ({"problem": [BENCHMARK], "question": "x"}, "problem must be a non-empty text"),
        ({"problem": None, "x": 1}, "no problem, question or messages; the fields are problem, x"),
        ({"problem": "p", "data": json.loads("[" * 900 + "]" * 900)}, "too many nested objects or arrays"),
    ],
)
def test_decontaminate_of_row_without_text_names_it(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """A row whose text cannot be compared, or that cannot be written, is refused."""
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK})
    given = tmp_path / "mine.jsonl"
    given.write_text(json.dumps({"problem": "p"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=rf"mine\.jsonl:2: {message}"):
        decontaminate([given], out=tmp_path / "out", against=[bench])


def test_prepare_of_benchmark_with_repeated_id_names_files(tmp_path: Path) -> None:
    """Two rows with the same id, also in two files, are refused by their files."""
    row = {"id": 1, "problem": "p", "answer": "1"}
    first, second = (_write(tmp_path / name, row) for name in ("a.jsonl", "b.jsonl"))
    with pytest.raises(DataError, match=r"b\.jsonl: id '1' is also that of another row of .*a\.jsonl"):
        prepare([_source("aime", first, second)], out=tmp_path / "out")
    equal = _write(tmp_path / "c.jsonl", {"problem": "p", "answer": "1"}, {"problem": "p", "answer": "1"})
    with pytest.raises(DataError, match=r"c\.jsonl: id '\w{16}' is also that of another row"):
        prepare([_source("benchmark", equal)], out=tmp_path / "out")


def test_prepare_removes_half_surrogate_pairs(tmp_path: Path) -> None:
    """A text with half of a surrogate pair is removed."""
    rows = [{"problem": "half \ud83d?", "answer": "1"}, {"problem": "whole \U0001f600?", "answer": "1"}]
    given = _write(tmp_path / "mine.jsonl", *rows)
    for result in (
        prepare([_source("problems", given)], out=tmp_path / "a"),
        decontaminate([given], out=tmp_path / "b", against=[_write(tmp_path / "bench.jsonl", {"problem": "?"})]),
    ):
        assert _removed(result) == {"not-text": 1}
        assert [problem.problem for problem in read_problems(result.file)] == ["whole \U0001f600?"]
        assert result.report["removed"]["not-text"]["examples"][0]["why"] == r"'\ud83d'"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: prepare([_source("dapo", f), _source("tulu3", f)], out=f.parent), "must have the same kind"),
        (lambda f: prepare([], out=f.parent), "got none"),
        (lambda f: prepare([_source("aime", f)], out=f.parent, against=[f]), "--against and --sampled do not apply"),
        (lambda f: prepare([_source("tulu3", f)], out=f.parent, sampled=f), "the sources are conversations"),
        (lambda f: prepare([_source("dapo", f)], out=f.parent, sampled=f), "the layouts openmathreasoning, problems"),
        (lambda f: prepare([_source("problems", f)], out=f.parent), "removed all 1 rows: not-an-integer 1"),
        (lambda f: prepare([_source("tulu3", f)], out=f.parent), r"f\.jsonl:1: no messages; layout tulu3 is"),
        (lambda f: prepare([_source("problems", f)], out=f.parent, against=[f.parent / "g"]), "g: no such file"),
        (lambda f: PrepareSettings(similarity=0), "--similarity must be above 0 and at most 1, got 0"),
        (lambda f: PrepareSettings(agree=0), "must be at least 1, got 20 and 0"),
    ],
)
def test_prepare_of_invalid_request_raises_and_writes_nothing(
    tmp_path: Path, make: Callable[[Path], Any], message: str
) -> None:
    """An invalid request is an error that leaves no output."""
    file = _write(tmp_path / "f.jsonl", {"problem": "p", "answer": "x"})
    with pytest.raises(DataError, match=message):
        make(file)
    assert _left_behind(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"f.jsonl", "parts"}
