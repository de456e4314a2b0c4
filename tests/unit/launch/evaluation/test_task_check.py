"""`rstar2 env check` up to the start of a process, and the text of its result."""

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.tasks import ToolSpec
from rstar2_train.cli.check_view import render_check
from rstar2_train.cli.main import main
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.scripted_client import ScriptedClient
from rstar2_train.launch.evaluation.task_check import CheckRequest, prepare_check
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.services import RunningServices
from rstar2_train.rollout.script import default_script, read_script
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.tools.parser import parse_calls
from rstar2_train.tools.toolset import load_toolset

TOOL = '''
def book(day: str, seats: int, kind: list[str] | None, note: str = "") -> str:
    """Books a table."""
    return day
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder from the template `sql`."""
    assert main(["init", "--template", "sql", str(tmp_path / "shop")]) == 0
    return tmp_path / "shop"


def request(folder: Path, **options: Any) -> CheckRequest:
    """Return the options of a command line."""
    defaults: dict[str, Any] = {"row": 1, "stage": "", "data": None, "script": None, "model": "", "tokenizer": None}
    services = RunningServices()
    return CheckRequest(manifest=folder / "job.yaml", running=services, state=folder / "state", **(defaults | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": 7}, "--row 7: .* has 6 rows"),
        ({"stage": "sft"}, "--stage sft: not a stage with problems of its own; the job has rl, eval"),
        ({"data": Path("absent.jsonl")}, "absent.jsonl"),
        ({"script": Path("absent.txt")}, "absent.txt"),
        ({"tokenizer": Path("absent")}, "absent: no tokenizer.json"),
    ],
)
def test_prepare_check_wrong_option_raises(folder: Path, options: dict[str, Any], message: str) -> None:
    """A wrong row, stage or file is an error that names it, before a process is started."""
    with pytest.raises(PreflightError, match=message):
        prepare_check(request(folder, **options))


def test_env_check_invalid_manifest_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the error of an unusable tool, and its exit code is 1."""
    (folder / "tool.py").write_text("def query(sql): ...\n")
    assert main(["env", "check", str(folder / "job.yaml"), "--state", str(folder / "state")]) == 1
    assert "parameter 'sql' has no type hint" in capsys.readouterr().err


def test_default_script_calls_each_tool_with_valid_arguments(tmp_path: Path) -> None:
    """The default script calls each tool once with arguments that its schema accepts, then gives the answer."""
    (tmp_path / "book.py").write_text(TOOL)
    specs = [ToolSpec(name="book", source=str(tmp_path / "book.py")), ToolSpec(name="jupyter_code")]
    tools = load_toolset(specs)
    calls, answer = default_script(tools, answer="SELECT {}", reward="Program")
    assert [(call.name, call.fault) for call in parse_calls(calls, max_calls=8, tools=tools)] == [
        ("book", ""),
        ("jupyter_code", ""),
    ]
    assert answer == "<answer>SELECT {}</answer>"
    assert default_script(load_toolset([]), answer="7", reward="Math")[-1] == "<answer>\\boxed{7}</answer>"


def test_read_script_splits_turns_at_the_separator(tmp_path: Path) -> None:
    """Turns are separated by lines `---`; an empty turn is an error."""
    (tmp_path / "script.txt").write_text("a\n--- b\n\n---\nc\n")
    assert read_script(tmp_path / "script.txt") == ["a\n--- b", "c"]
    (tmp_path / "script.txt").write_text("a\n---\n")
    with pytest.raises(ValueError, match="turn 2 is empty"):
        read_script(tmp_path / "script.txt")


async def test_scripted_client_cuts_turns_and_ends() -> None:
    """A turn longer than its limit is cut, as an engine does; a request after the last turn names the remedy."""
    async with EngineSession() as session:
        client = ScriptedClient("script", token="", session=session, turns=[[1, 2, 3], [4]])
        cut = await client.generate([], max_tokens=2)
        assert (list(cut.token_ids), cut.finish_reason) == ([1, 2], "length")
        assert (await client.generate([], max_tokens=2)).finish_reason == "stop"
        with pytest.raises(EngineRejected, match="the script has 2 turns"):
            await client.generate([], max_tokens=2)


def test_render_check_marks_trained_and_masked_lines(folder: Path) -> None:
    """Each line has the mark of its tokens; calls, penalties, reward and control characters are visible."""
    check = prepare_check(request(folder, script=folder / "script.txt"))
    encode = check.chat_format.encode
    trajectory = Trajectory(
        prompt_id=check.problem.id,
        sample=0,
        prompt_ids=encode("ask\nme"),
        segments=[
            Segment("model", encode("call\x1b[2J")),
            Segment("tool", encode("output")),
            Segment("model", encode("done")),
        ],
        calls=[ToolCall(0, "query", "{}", "", "timeout", "error")],
        turns=2,
        answer="80",
        gold="8",
        verdict="wrong",
        reward=0.25,
        p_err=1.0,
        reason="another result",
    )
    text = render_check(check, trajectory).plain
    for line in ("| me", "+ call␛[2J", "  call 1: query: status timeout", "| output", "+ done"):
        assert f"\n{line}\n" in text
    assert "tool errors: 1 of 1 calls, p_err 1\n" in text
    assert "reward: 0.25 (correct from 1), wrong: another result\n" in text
    trajectory.mark_lost("checker", RuntimeError("defect"))
    assert "lost, never scored: checker: defect" in render_check(check, trajectory).plain


@pytest.mark.parametrize("template", ["maths", "sql", "science"])
def test_init_template_is_valid_and_checks(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new folder has a valid manifest without warnings, a plan and a check for each row; init does not overwrite."""
    folder = tmp_path / "new"
    assert main(["init", "--template", template, str(folder)]) == 0
    capsys.readouterr()
    assert main(["validate", str(folder / "job.yaml")]) == 0
    assert "warning" not in capsys.readouterr().out
    assert main(["plan", str(folder / "job.yaml")]) == 0
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows, start=1):
        assert prepare_check(request(folder, row=number)).problem.id == row["id"]
    capsys.readouterr()
    assert main(["init", "--template", template, str(folder)]) == 1
    assert "is not empty" in capsys.readouterr().err
