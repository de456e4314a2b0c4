"""`rstar2 env check` and the templates of `rstar2 init` in real sandboxes: known answers, attacks, faults."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2_train.cli.main import main
from rstar2_train.data.task_templates import write_template
from scripts.docs.repository import ROOT
from tests.support.page_blocks import blocks, without_times
from tests.support.servers import running
from tests.support.unsupervised_judge import UnsupervisedJudge

Check = Callable[..., tuple[int, str]]
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT MAX(x) FROM n"


@pytest.fixture
def check(judge: UnsupervisedJudge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """A function that runs `rstar2 env check` on a folder, and returns its exit code and its output."""

    def run(folder: Path, row: int = 1, answer: str | None = None, script: Path | None = None) -> tuple[int, str]:
        argv = ["env", "check", str(folder / "job.yaml"), "--row", str(row), "--judge", judge.url]
        if answer is not None:
            script = tmp_path / "turns.txt"
            script.write_text(f"<answer>{answer}</answer>")
        if script is not None:
            argv += ["--script", str(script)]
        code = main([*argv, "--state", str(tmp_path / "state")])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.mark.parametrize("template", ["maths", "sql", "science"])
def test_env_check_rewards_known_answers_of_templates(template: str, check: Check, tmp_path: Path) -> None:
    """The known answer of each row is correct, after a call of each tool in the sandbox; a number alone is not."""
    write_template(template, tmp_path / "new")
    rows = [json.loads(line) for line in (tmp_path / "new/rows.jsonl").read_text().splitlines()]
    for number in range(1, len(rows) + 1):
        code, text = check(tmp_path / "new", number)
        assert code == 0, text
        assert "reward: 1 (correct from 1), correct" in text
    assert "reward: 0 (correct from 1), wrong" in check(tmp_path / "new", 2, "\\boxed{1}")[1]


def test_env_check_plays_the_game_of_its_template(check: Check, tmp_path: Path) -> None:
    """The server of the template plays the script of row 1, whose data sets the number."""
    write_template("openenv", tmp_path / "game")
    manifest = tmp_path / "game" / "job.yaml"
    with running(str(tmp_path / "game" / "server.py")) as port:
        manifest.write_text(manifest.read_text().replace("8765", str(port)))
        code, text = check(tmp_path / "game", script=tmp_path / "game" / "script.txt")
        assert code == 0, text
        assert text.index("higher") < text.index("lower") < text.index("reward: 1 (correct from 1), correct")
        code, text = check(tmp_path / "game", row=2)
        assert (code, "reward: 0 (correct from 1), wrong" in text) == (0, True), text


def test_env_check_prints_the_output_of_the_environments_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of docs/environments.md starts with the page's command, and plays its script as printed there."""
    page = (ROOT / "docs" / "environments.md").read_text("utf-8")
    (command,) = re.findall(r"`(command: .*?)`", page)
    folder = Path("examples/environment")
    shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    manifest = folder / "job.yaml"
    manifest.write_text(manifest.read_text().replace('url: "http://127.0.0.1:8765"', command))
    assert main(["env", "check", str(manifest), "--script", str(folder / "script.txt")]) == 0
    assert without_times(capsys.readouterr().out) in [without_times(block) for block in blocks(page)]


def test_env_check_starts_a_judge_only_for_its_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment has tools and reward: a machine without Redis and gVisor checks its rows."""
    write_template("openenv", tmp_path / "game")
    manifest = tmp_path / "game" / "job.yaml"
    with running(str(tmp_path / "game" / "server.py")) as port:
        manifest.write_text(manifest.read_text().replace("8765", str(port)))
        monkeypatch.setenv("PATH", str(tmp_path))
        argv = ["env", "check", str(manifest), "--state", str(tmp_path / "state")]
        assert main([*argv, "--script", str(tmp_path / "game" / "script.txt")]) == 0
        assert "reward: 1 (correct from 1), correct" in capsys.readouterr().out
        manifest.write_text(manifest.read_text().replace("spec:", "spec:\n  rewards: [{name: x, type: Math}]"))
        assert main(argv) == 1
        printed = capsys.readouterr()
        assert "redis-server is not on the PATH" in printed.out + printed.err


def test_env_check_scores_the_calls_of_declared_functions(check: Check, tmp_path: Path) -> None:
    """The calls of the first turn are the answer; where no function helps, no call is right."""
    write_template("calls", tmp_path / "calls")
    for row, script, reward in ((1, "script.txt", 1), (2, "script.txt", 0), (3, "script.txt", 0), (3, None, 1)):
        answer = None if script else "Goethe"
        code, text = check(tmp_path / "calls", row, answer, script=tmp_path / "calls" / script if script else None)
        assert code == 0 and f"reward: {reward} (correct from 1)" in text, text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("SELECT 80.0", "another result after a change of the data"),
        ("DELETE FROM products", "not authorized"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT zeroblob(900000000)", "too big"),
        (ENDLESS, "interrupted"),
    ],
)
def test_sql_checker_attack_scores_zero(answer: str, reason: str, check: Check, tmp_path: Path) -> None:
    """An answer that guesses, writes, floods or does not end is wrong: it neither wins nor loses the rollout."""
    write_template("sql", tmp_path / "shop")
    code, text = check(tmp_path / "shop", 1, answer)
    assert code == 0, text
    assert "reward: 0 (correct from 1), wrong" in text
    assert reason in text


def test_env_check_defects_of_the_task_are_errors(check: Check, tmp_path: Path) -> None:
    """A tool that cannot be imported, and a checker that crashes, are errors that name it; exit code 1."""
    folder = tmp_path / "shop"
    write_template("sql", folder)
    checker, tool = (folder / "checker.py").read_text(), (folder / "tool.py").read_text()
    (folder / "checker.py").write_text("def score(row, answer, transcript):\n    return row['absent']\n")
    code, text = check(folder)
    assert code == 1
    assert "lost, never scored: checker: reward sql: " in text
    assert "KeyError: 'absent'" in text
    (folder / "checker.py").write_text(checker)
    (folder / "tool.py").write_text(f"import absent\n{tool}")
    code, text = check(folder)
    assert code == 1
    assert "tool query: its file cannot be imported in the sandbox: ModuleNotFoundError: No module named 'abs" in text
