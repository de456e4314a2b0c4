"""Users' functions and checkers in a real sandbox: results, errors, files, limits, and no trace between calls."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.tasks import RewardSpec, ToolSpec
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import CallResult
from rstar2_train.rewards.task_rewards import Response, TaskRewards
from rstar2_train.tools.toolset import Tool, load_tool

TOOL = '''
import os, sqlite3, time

def query(sql: str) -> str:
    """Runs a query."""
    if sql == "hang":
        time.sleep(60)
    if sql == "exit":
        os._exit(0)
    if sql == "leave":
        open("/tmp/left", "w").write("x")
        os.chmod("shop.sqlite", 0o644)
        open("shop.sqlite", "w").write("broken")
    if sql == "look":
        return str(sorted(os.listdir("/tmp")))
    return str(sqlite3.connect("shop.sqlite").execute(sql).fetchall())
'''
CHECKER = """
import sqlite3

def score(row, answer, transcript):
    print("noise")
    if answer == "crash":
        raise RuntimeError("defect")
    rows = [sqlite3.connect("shop.sqlite").execute(sql).fetchall() for sql in (answer, row["answer"])]
    return (1.0, "equal") if rows[0] == rows[1] else (0.25, f"another result after {len(transcript['calls'])} calls")
"""


def shop(folder: Path) -> dict[str, bytes]:
    """Return the files of a row: a database with one table."""
    with sqlite3.connect(folder / "shop.sqlite") as database:
        database.execute("CREATE TABLE pets (age INTEGER)")
        database.executemany("INSERT INTO pets VALUES (?)", [(3,), (7,)])
    return {"shop.sqlite": (folder / "shop.sqlite").read_bytes()}


async def call(client: JudgeClient, tool: Tool, sql: str, files: dict[str, bytes]) -> CallResult:
    code, stdin = tool.snippet(json.dumps({"sql": sql}), "", files)
    return await client.run(code, stdin, limits=tool.limits(JudgeLimits()))


async def test_function_tool_reads_files_of_its_row(client: JudgeClient, tmp_path: Path) -> None:
    """A function runs with the row's files; errors and limits have their statuses; nothing stays for the next call."""
    (tmp_path / "store.py").write_text(TOOL)
    tool = load_tool(ToolSpec(name="query", source=str(tmp_path / "store.py"), wall_seconds=2))
    files = shop(tmp_path)
    oldest = await call(client, tool, "SELECT MAX(age) FROM pets", files)
    assert (oldest.status, oldest.stdout) == ("ok", "[(7,)]\n")
    failed = await call(client, tool, "SELECT x FROM pets", files)
    assert (failed.status, failed.stderr) == ("error", "OperationalError: no such column: x\n")
    assert (await call(client, tool, "hang", files)).status == "timeout"
    assert (await call(client, tool, "exit", files)).stdout == ""
    assert (await call(client, tool, "leave", files)).status == "error"
    assert (await call(client, tool, "look", files)).stdout == "['.source', 'shop.sqlite']\n"
    assert (await call(client, tool, "SELECT MIN(age) FROM pets", files)).stdout == "[(3,)]\n"


async def test_checker_compares_results_in_the_sandbox(client: JudgeClient, tmp_path: Path) -> None:
    """A checker compares result sets; its defects exclude the response, and its output does not disturb the score."""
    (tmp_path / "checker.py").write_text(CHECKER)
    spec = RewardSpec(name="sql", type="Program", source=str(tmp_path / "checker.py"), correct_from=0.5)
    rewards, files = TaskRewards([spec]), shop(tmp_path)
    row = {"id": "p", "problem": "The oldest?", "answer": "SELECT MAX(age) FROM pets", "data": None}
    grades = {}
    for answer in ("SELECT age FROM pets WHERE age > 5", "SELECT MIN(age) FROM pets", "crash"):
        text = f"<answer>{answer}</answer>"
        response = Response(model_text=text, last_turn=text, row=row, files=files, calls=[{"name": "query"}])
        grades[answer] = await rewards.grade(response, "sql", judge=client)
    verdicts = [(grade.verdict, grade.score) for grade in grades.values()]
    assert verdicts == [("correct", 1.0), ("wrong", 0.25), ("internal", 0.0)]
    assert "RuntimeError: defect" in grades["crash"].reason
