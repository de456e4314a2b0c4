"""`rstar2 data`: exit codes, what is printed, and help that teaches."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.cli.main import main
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.problems import read_problems

PROBLEM = {"problem": "How many of the first 100 positive integers are divisible by 2 or by 5?", "answer": "60"}


def _write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_prepare_prints_where_the_result_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = _write(tmp_path / "bench.jsonl", PROBLEM)
    given = _write(tmp_path / "mine.jsonl", PROBLEM, {"problem": "How many are there?", "answer": "1,000"})
    command = ["data", "prepare", f"problems={given}", "--against", str(bench), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    table, file, report = capsys.readouterr().out.rsplit("\n", 3)[:3]
    assert "contaminated" in table and "bench.jsonl:1" in table
    assert [(p.problem, p.answer) for p in read_problems(Path(file))] == [("How many are there?", "1000")]
    assert json.loads(Path(report).read_text(encoding="utf-8"))["kept"]["all"] == 1
    assert main(command) == 0
    assert "existing result of the same input" in capsys.readouterr().out


def test_decontaminate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = _write(tmp_path / "bench.jsonl", PROBLEM)
    given = _write(tmp_path / "mine.jsonl", PROBLEM, {"problem": "Another.", "source": "me"})
    assert main(["data", "decontaminate", str(given), "--against", str(bench), "--out", str(tmp_path / "out")]) == 0
    file = Path(capsys.readouterr().out.splitlines()[-2])
    assert file.read_text(encoding="utf-8") == '{"problem": "Another.", "source": "me"}\n'


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("{}", ["2 rows, 2 usable", "answers: 1 integers, 1 others", "words per row: 1 to 15"]),
        ("problems={}", ["2 rows, 1 usable as training problems", "1 removed by not-an-integer"]),
        ("benchmark={}", ["2 rows, 2 usable as benchmark", '"id": "7"']),
    ],
)
def test_inspect_shows_columns_and_what_would_become_of_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, shown: list[str]
) -> None:
    given = _write(tmp_path / "mine.jsonl", PROBLEM | {"id": 7}, {"problem": "Where?", "answer": "\\pi"})
    assert main(["data", "inspect", named.format(given)]) == 0
    printed = capsys.readouterr().out
    assert [words for words in (*shown, "problem", "number", "text") if words not in printed] == []


def test_inspect_counts_turns_and_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = [("user", "a"), ("assistant", "<tool_call>\n{}\n</tool_call>"), ("tool", "1"), ("assistant", "b")]
    messages = [{"role": role, "content": content} for role, content in said]
    given = _write(tmp_path / "talk.jsonl", {"messages": messages}, {"other": 1})
    assert main(["data", "inspect", str(given), "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    assert "1 rows, 1 usable" in printed and "messages: 1 user, 2 assistant, 1 tool call, 1 tool" in printed
    assert main(["data", "inspect", str(_write(given, {"other": 1}))]) == 0
    assert "Select a layout" in capsys.readouterr().out


def test_inspect_takes_what_other_programs_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{}]}]
    given = _write(tmp_path / "talk.jsonl", {"messages": calls}, {"messages": [{"from": "human", "value": "b"}]})
    assert main(["data", "inspect", str(given)]) == 0
    assert "messages: 1 user, 1 assistant" in capsys.readouterr().out
    dated = tmp_path / "dated.parquet"
    row = {**PROBLEM, "at": datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)}
    pq.write_table(pa.Table.from_pylist([row]), dated)
    assert main(["data", "inspect", str(dated)]) == 0
    assert "2026-11-22" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "mine.jsonl", "--out", "o"], "a source is LAYOUT=PATH; the layouts are dapo, "),
        (["prepare", "dapo=none.jsonl", "--out", "o"], "none.jsonl: no such file or folder"),
        (["prepare", "dapo={mine}", "--out", "o"], "mine.jsonl:1: no prompt; layout dapo is "),
        (["prepare", "problems={mine}", "--out", "o", "--similarity", "2"], "at most 1, got 2.0"),
        (["prepare", "problems={mine}", "--out", "{mine}"], "Not a directory"),
        (["decontaminate", "{mine}", "--out", "o"], "--against is missing"),
        (["inspect", "none.jsonl"], "none.jsonl: no such file"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = _write(tmp_path / "mine.jsonl", PROBLEM)
    assert main(["data", *(argument.format(mine=mine) for argument in arguments)]) == 1
    shown = capsys.readouterr().err.strip().splitlines()[-1]
    assert shown.startswith(f"rstar2 data {arguments[0]}: ") and message in shown


def test_help_names_every_layout_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("prepare", "inspect"):
        with pytest.raises(SystemExit):
            main(["data", verb, "--help"])
        shown = capsys.readouterr().out
        assert [name for name in LAYOUTS if f"  {name} " not in shown] == []
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert "examples:" in capsys.readouterr().out
