"""From sources to a prepared file: what goes, what stays, the same bytes again, and nothing half-written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data.prepare import pipeline as prepare_module
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, PreparedDataset, decontaminate, prepare
from rstar2_train.data.problems import read_conversations, read_problems
from rstar2_train.data.readers import DataError
from rstar2_train.rewards.instructions import Instruction, of_gold

BENCHMARK = "A rhombus of side 13 has a diagonal of length 24; find the product of its area and its other diagonal."


def _text(index: int) -> str:
    """Problem number `index`: 20 words, none of which is another one's."""
    letter = chr(ord("a") + index)
    return " ".join(letter * length for length in range(1, 20)) + f" {index}?"


def _write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _source(layout: str, *files: Path) -> DatasetSource:
    return DatasetSource(LAYOUTS[layout], files)


def _sources(folder: Path) -> list[DatasetSource]:
    """Two layouts, and a row for each rule."""
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


def test_each_rule_removes_its_row_and_the_report_says_so(tmp_path: Path) -> None:
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


def test_sampled_answers_confirm_the_labels_that_are_in_doubt(tmp_path: Path) -> None:
    candidates = {problem.answer: problem.id for problem in read_problems(_prepare(tmp_path).file)}
    rows = [{"id": candidates[answer], "answers": said} for answer, said in (("5", ["5"] * 2), ("6", ["5"] * 16))]
    sampled = _write(tmp_path / "answers.jsonl", *rows)
    prepared = _prepare(tmp_path, sampled)
    assert [problem.answer for problem in read_problems(prepared.file)] == ["0", "1", "2", "3", "5"]
    assert _removed(prepared) == {**CANDIDATES, "unverified": 1, "not-sampled": 1}
    stricter = _prepare(tmp_path, _write(tmp_path / "more.jsonl", *rows, {"id": candidates["7"], "answers": ["7"] * 3}),
                        settings=PrepareSettings(agree=3))  # fmt: skip
    assert [problem.answer for problem in read_problems(stricter.file)] == ["0", "1", "2", "3", "7"]


def test_sampled_answers_of_other_problems_are_an_error(tmp_path: Path) -> None:
    sampled = _write(tmp_path / "answers.jsonl", {"id": "openmathreasoning-0", "answers": ["1", "1"]})
    with pytest.raises(DataError, match="confirm no problem at all"):
        _prepare(tmp_path, sampled)


def test_the_same_input_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    first, second = _prepare(tmp_path / "a"), _prepare(tmp_path / "b" / "c")
    assert _bytes(first) == _bytes(second) and not second.reused
    assert str(tmp_path) not in _bytes(first)[1].decode()
    other = _prepare(tmp_path / "a", settings=PrepareSettings(similarity=1.0))
    assert other.file.parent != first.file.parent and "near-duplicate" not in _removed(other)


def test_what_is_there_is_used_again_unless_it_was_changed(tmp_path: Path) -> None:
    first = _prepare(tmp_path)
    again = _prepare(tmp_path)
    assert again.reused and (again.file, again.report) == (first.file, first.report)
    first.file.write_text("mine", encoding="utf-8")
    with pytest.raises(DataError, match="changed since it was made; remove"):
        _prepare(tmp_path)
    assert first.file.read_text(encoding="utf-8") == "mine"


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("at", ["reading openmathreasoning: omr.jsonl", "comparing", "writing"])
def test_after_an_interruption_nothing_is_half_written_and_finished_files_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == at:
            raise Killed

    with pytest.raises(Killed):
        _prepare(tmp_path, watch=interrupt)
    assert _left_behind(tmp_path / "out") == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parts"]
    read: list[str] = []
    convert = prepare_module.converted

    def count(layout: Any, *arguments: Any, **more: Any) -> Any:
        read.append(layout.name)
        return convert(layout, *arguments, **more)

    monkeypatch.setattr(prepare_module, "converted", count)
    resumed = _prepare(tmp_path)
    assert read == (["openmathreasoning"] * 7 if at.startswith("reading") else [])
    assert _bytes(resumed) == _bytes(_prepare(tmp_path / "whole"))


def test_a_benchmark_keeps_every_row_and_its_own_ids(tmp_path: Path) -> None:
    rows = [{"problem": "p", "answer": "\\pi", "unique_id": "a/1"}, {"problem": "q", "answer": "2" * 30}]
    prepared = prepare([_source("math500", _write(tmp_path / "m.jsonl", *rows))], out=tmp_path / "out")
    problems = list(read_problems(prepared.file))
    assert [problem.answer for problem in problems] == ["\\pi", "2" * 30] and problems[0].id == "math500-a/1"


def test_the_benchmarks_of_transfer_as_they_are_published(tmp_path: Path) -> None:
    columns = ["Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)), "Record ID"]
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerows([columns, ["Which, of\nthese?", 'the "first"', "b", "c", "d", "rec1"]])
    hmmt = {"problem_idx": 1, "answer": "103", "problem_type": ["Algebra"], "problem": "How many?"}
    words = {"num_words": 20, "relation": "less than"}
    ifeval = {
        "key": 7,
        "prompt": "Describe a door.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [dict.fromkeys(words), words],
    }
    pq.write_table(pa.Table.from_pylist([hmmt]), tmp_path / "hmmt.parquet")
    pq.write_table(pa.Table.from_pylist([ifeval]), tmp_path / "ifeval.parquet")
    found = {}
    for layout, file in (("gpqa", "gpqa_diamond.csv"), ("hmmt", "hmmt.parquet"), ("ifeval", "ifeval.parquet")):
        prepared = prepare([_source(layout, tmp_path / file)], out=tmp_path / "out")
        found[layout] = next(read_problems(prepared.file))
    assert (found["gpqa"].id, found["hmmt"].id, found["ifeval"].id) == ("gpqa-rec1", "hmmt-1", "ifeval-7")
    assert "Which, of\nthese?\n\nA) " in found["gpqa"].problem and ') the "first"\n' in found["gpqa"].problem
    assert (found["hmmt"].answer, found["hmmt"].slice, found["hmmt"].as_is) == ("103", "Algebra", False)
    assert (found["ifeval"].problem, found["ifeval"].as_is) == ("Describe a door.", True)
    assert of_gold(found["ifeval"].answer) == [
        Instruction("punctuation:no_comma", {}),
        Instruction("length_constraints:number_words", words),
    ]


def test_nested_columns_of_parquet_are_read(tmp_path: Path) -> None:
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


def _talk(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant") * len(texts)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]}


def test_conversations_are_compared_by_what_the_user_says(tmp_path: Path) -> None:
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK, "answer": "1200"})
    one = _write(tmp_path / "1.jsonl", _talk("hi", "ho"), _talk(BENCHMARK, "1200"), _talk("hi", BENCHMARK))
    two = _write(tmp_path / "2.jsonl", _talk("hi", "ho"), _talk("hi", "ha"))
    prepared = prepare([_source("tulu3", one), _source("conversations", two)], out=tmp_path / "out", against=[bench])
    assert [row.messages[1]["content"] for row in read_conversations(prepared.file)] == ["ho", BENCHMARK, "ha"]
    assert _removed(prepared) == {"contaminated": 1, "repeated": 1}


def test_decontamination_leaves_rows_as_they_are(tmp_path: Path) -> None:
    bench = _write(tmp_path / "bench.jsonl", {"problem": BENCHMARK})
    rows = [{"question": _text(0), "é": [1]}, {"problem": f"Now: {BENCHMARK}"}, _talk(_text(1), "1"), _talk(BENCHMARK)]
    given = _write(tmp_path / "mine.jsonl", *rows)
    done = decontaminate([given], out=tmp_path / "out", against=[bench])
    assert [json.loads(line) for line in done.file.read_text(encoding="utf-8").splitlines()] == [rows[0], rows[2]]
    assert [example["at"] for example in done.report["removed"]["contaminated"]["examples"]] == [
        "mine.jsonl:2",
        "mine.jsonl:4",
    ]
    assert decontaminate([given], out=tmp_path / "out", against=[bench]).reused
    with pytest.raises(DataError, match=r"odd\.jsonl:1: no problem, question or messages; the fields are x"):
        decontaminate([_write(tmp_path / "odd.jsonl", {"x": 1})], out=tmp_path / "out", against=[bench])
    assert _left_behind(tmp_path / "out") == []


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    rows = [{"problem": "half \ud83d?", "answer": "1"}, {"problem": "whole \U0001f600?", "answer": "1"}]
    given = _write(tmp_path / "mine.jsonl", *rows)
    for done in (
        prepare([_source("problems", given)], out=tmp_path / "a"),
        decontaminate([given], out=tmp_path / "b", against=[_write(tmp_path / "bench.jsonl", {"problem": "?"})]),
    ):
        assert _removed(done) == {"not-text": 1}
        assert [problem.problem for problem in read_problems(done.file)] == ["whole \U0001f600?"]
        assert done.report["removed"]["not-text"]["examples"][0]["why"] == r"'\ud83d'"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: prepare([_source("dapo", f), _source("tulu3", f)], out=f.parent), "must be of one kind"),
        (lambda f: prepare([], out=f.parent), "none given"),
        (lambda f: prepare([_source("aime", f)], out=f.parent, against=[f]), "take no --against"),
        (lambda f: prepare([_source("tulu3", f)], out=f.parent, sampled=f), "these sources are conversations"),
        (lambda f: prepare([_source("dapo", f)], out=f.parent, sampled=f), "applies to openmathreasoning, problems"),
        (lambda f: prepare([_source("problems", f)], out=f.parent), "no row is left of 1: not-an-integer 1"),
        (lambda f: prepare([_source("tulu3", f)], out=f.parent), r"f\.jsonl:1: no messages; layout tulu3 is"),
        (lambda f: prepare([_source("problems", f)], out=f.parent, against=[f.parent / "g"]), "g: no such file"),
        (lambda f: PrepareSettings(similarity=0), "--similarity is 0"),
        (lambda f: PrepareSettings(agree=0), r"--agree \(0\) must be at least 1"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(
    tmp_path: Path, make: Callable[[Path], Any], message: str
) -> None:
    file = _write(tmp_path / "f.jsonl", {"problem": "p", "answer": "x"})
    with pytest.raises(DataError, match=message):
        make(file)
    assert _left_behind(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"f.jsonl", "parts"}
