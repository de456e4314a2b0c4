"""`rstar2 data`: exit codes, output and help."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from rstar2_train.cli.data_tables import column_table, removal_table
from rstar2_train.cli.main import main
from rstar2_train.data.prepare.inspect import inspect_rows
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.problems import read_problems

PROBLEM = {"problem": "How many of the first 100 positive integers are divisible by 2 or by 5?", "answer": "60"}


def _write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_prepare_prints_the_paths_of_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run with the same input uses the existing result."""
    bench = _write(tmp_path / "bench.jsonl", PROBLEM)
    given = _write(tmp_path / "mine.jsonl", PROBLEM, {"problem": "How many are there?", "answer": "1,000", "year": 1})
    command = ["data", "prepare", f"problems={given}", "--against", str(bench), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    table, file, report = capsys.readouterr().out.rsplit("\n", 3)[:3]
    assert "contaminated" in table and "bench.jsonl:1" in table and table.endswith("\ncolumns not used: year")
    assert [(p.problem, p.answer) for p in read_problems(Path(file))] == [("How many are there?", "1000")]
    assert json.loads(Path(report).read_text(encoding="utf-8"))["kept"]["all"] == 1
    assert main(command) == 0
    assert "existing result of the same input" in capsys.readouterr().out


def test_decontaminate_keeps_other_rows_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only rows that overlap with the benchmark are removed."""
    bench = _write(tmp_path / "bench.jsonl", PROBLEM)
    given = _write(tmp_path / "mine.jsonl", PROBLEM, {"problem": "Another.", "source": "me"})
    assert main(["data", "decontaminate", str(given), "--against", str(bench), "--out", str(tmp_path / "out")]) == 0
    file = Path(capsys.readouterr().out.splitlines()[-2])
    assert file.read_text(encoding="utf-8") == '{"problem": "Another.", "source": "me"}\n'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{}", ["2 rows, 2 usable", "answers: 1 integers, 1 others", "words per row: 1 to 15"]),
        ("problems={}", ["2 rows, 1 usable as training problems", "1 removed by not-an-integer", "not used: id\n"]),
        ("benchmark={}", ["2 rows, 2 usable as benchmark", '"id": "7"']),
    ],
)
def test_inspect_prints_columns_and_usable_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, expected: list[str]
) -> None:
    """With a layout, the rows are counted after the conversion."""
    given = _write(tmp_path / "mine.jsonl", PROBLEM | {"id": 7}, {"problem": "Where?", "answer": "\\pi"})
    assert main(["data", "inspect", source.format(given)]) == 0
    printed = capsys.readouterr().out
    assert [text for text in (*expected, "problem", "number", "text") if text not in printed] == []


def test_inspect_shows_characters_that_control_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mark of direction would reorder the rest of its line."""
    given = _write(tmp_path / "mine.jsonl", PROBLEM | {"problem": "a\u202eb\u2028c\x85d\x1b[31m"})
    assert main(["data", "inspect", str(given)]) == 0
    assert re.search("[\u202e\u2028\x85\x1b]", capsys.readouterr().out) is None


def test_inspect_counts_turns_and_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that are no conversations need a layout."""
    turns = [("user", "a"), ("assistant", "<tool_call>\n{}\n</tool_call>"), ("tool", "1"), ("assistant", "b")]
    messages = [{"role": role, "content": content} for role, content in turns]
    given = _write(tmp_path / "talk.jsonl", {"messages": messages}, {"other": 1})
    assert main(["data", "inspect", str(given), "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    assert "1 rows, 1 usable" in printed and "messages: 1 user, 2 assistant, 1 tool call, 1 tool" in printed
    assert main(["data", "inspect", str(_write(given, {"other": 1}))]) == 0
    assert "Select a layout" in capsys.readouterr().out


def test_inspect_reads_rows_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other message formats are counted as refused; dates and numbers of any size are columns."""
    calls = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{}]}]
    rows = [PROBLEM | {"messages": 5}, {"messages": calls}, {"messages": [{"from": "human", "value": "b"}]}]
    given = _write(tmp_path / "mixed.jsonl", *rows, PROBLEM | {"id": "a"}, PROBLEM | {"id": "a"})
    assert main(["data", "inspect", str(given)]) == 0
    printed = capsys.readouterr().out
    assert f"5 rows, 1 usable\n  4 refused by stages: {given}:1: messages must be a" in printed
    dated = tmp_path / "dated.parquet"
    row = {**PROBLEM, "at": datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)}
    pq.write_table(pa.Table.from_pylist([row]), dated)
    assert main(["data", "inspect", str(dated)]) == 0
    printed = capsys.readouterr().out
    assert "2026-11-22" in printed and "timestamp[us, tz=UTC]" in printed
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text(f'{{"a": 0.30000000000000000000001}}\n{{"a": {"9" * 5000}}}\n{{"a": 2}}\n')
    assert main(["data", "inspect", str(numbers)]) == 0
    assert re.search(r"\ba +number +3 +'?0.30000000000000000000001", capsys.readouterr().out)


@pytest.mark.parametrize("width", [30, 60, 200])
def test_tables_show_each_value_at_any_width(tmp_path: Path, width: int) -> None:
    """Many sources, long names and names with controls of a terminal or markup."""
    sources = {f"source-{at}": 100_000 + at for at in range(8)}
    rule = {"rows": {"all": 7, "source-1": 7}, "examples": [{"at": "a-file.jsonl:1", "why": "[red]x[/red] " * 9}]}
    report = {"read": {"all": 10**6, **sources}, "kept": {"all": 9}, "removed": {"not-an-integer": rule}}
    row = {"a-column-with-a-long-name": "x" * 99, "\x1b[31mred": 1, "[bold]x": "[/]"}
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(removal_table(report))
        console.print(column_table(inspect_rows([_write(tmp_path / "rows.jsonl", row)])))
    text = capture.get()
    assert "…" not in text and "\x1b" not in text and max(map(len, text.splitlines())) <= width
    assert all(f"{count:,}" in text for count in sources.values()) and "1,000,000" in text
    assert "[red]x[/red]" in text and "[bold]x" in text and "␛[31mred" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "mine.jsonl", "--out", "o"], "a source is LAYOUT=PATH; the layouts are dapo, "),
        (["prepare", "dapo=none.jsonl", "--out", "o"], "none.jsonl: no such file or folder"),
        (["prepare", "dapo={mine}", "--out", "o"], "mine.jsonl:1: no prompt; layout dapo is "),
        (["prepare", "problems={mine}", "--out", "o", "--similarity", "2"], "at most 1, got 2.0"),
        (["prepare", "problems={mine}", "--out", "{mine}"], "Not a directory"),
        (["decontaminate", "{mine}", "--out", "o"], "--against is missing"),
        (["decontaminate", "{mine}", "mine.*", "--against", "{mine}", "--out", "o"], "mine.jsonl: named twice, so"),
        (["inspect", "none.jsonl"], "none.jsonl: no such file"),
    ],
)
def test_data_error_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    """The line names the subcommand and the cause; the exit code is 1."""
    monkeypatch.chdir(tmp_path)
    mine = _write(tmp_path / "mine.jsonl", PROBLEM)
    assert main(["data", *(argument.format(mine=mine) for argument in arguments)]) == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(f"rstar2 data {arguments[0]}: ") and message in line


def test_data_help_lists_layouts_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each subcommand is enough to use it."""
    for verb in ("prepare", "inspect"):
        with pytest.raises(SystemExit):
            main(["data", verb, "--help"])
        output = capsys.readouterr().out
        assert [name for name in LAYOUTS if f"  {name} " not in output] == []
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert "examples:" in capsys.readouterr().out


def test_inspect_with_model_marks_trained_tokens(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demonstration is shown as tokens, trained ones behind `>`, and in colour on a terminal."""
    call = {"function": {"name": "f", "arguments": '{"a": "é\U0001f600"}'}}
    turn = {"role": "assistant", "content": "[bold]one\ntwo", "tool_calls": [call]}
    messages = [{"role": "user", "content": "\x1b[31mq"}, turn]
    given = _write(tmp_path / "mine.jsonl", {"messages": []}, {"messages": messages})
    for source in (str(given), f"conversations={given}"):
        command = ["data", "inspect", source, "--model", str(model_folder), "--row", "2"]
        assert main(command) == 0
        plain = capsys.readouterr().out
        title, *lines = plain.splitlines()
        assert title.startswith(f"{given}:2: ") and title.endswith(" trained (lines with >)")
        joined = ["".join(line[2:].split("|")) for line in lines if line.startswith("> ")]
        assert "".join(joined).startswith("[bold]one⏎two⏎<tool_call>⏎{") and "".join(joined).endswith("<im_end>")
        assert "\x1b" not in plain
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert main(command) == 0
        monkeypatch.delenv("FORCE_COLOR")
        coloured = capsys.readouterr().out
        assert coloured != plain and re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


BROKEN = {"content": "<tool_call>\n{'name': 'f'}\n</tool_call>", "reasoning_content": None}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (1, ":1: messages must be a non-empty list"),
        (2, ":2: messages[1]: the chat template does not write reasoning_content"),
        (3, ":3: messages[1]: the content has a call of the form hermes that rollouts cannot read: not valid JSON"),
        (4, "no row 4; set a smaller --row"),
    ],
)
def test_inspect_with_model_names_a_refused_row(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], row: int, message: str
) -> None:
    """A row that the stage would refuse is refused with its line."""
    turn = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    rows = [[{"role": "user", "content": "q"}, message] for message in (turn, turn | BROKEN)]
    given = _write(tmp_path / "mine.jsonl", {"messages": []}, *({"messages": messages} for messages in rows))
    assert main(["data", "inspect", str(given), "--model", str(model_folder), "--row", str(row)]) == 1
    assert message in capsys.readouterr().err
