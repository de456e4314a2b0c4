"""Users' functions and checkers in a real sandbox: results, errors, files, limits, and no trace between calls."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import RewardSpec, ToolSpec
from rstar2_train.data.problems import Problem
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.executor.program import SOCKET
from rstar2_train.judge.types import CallResult, ReturnedFile
from rstar2_train.rewards.task_rewards import Response, TaskRewards
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.agent import Agent
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import RolloutContext
from rstar2_train.tools.schema import call_text
from rstar2_train.tools.toolset import MAX_RETURNED_BYTES, Tool, load_tool, load_toolset
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.rollout_groups import sample_groups
from tests.support.scripted_pool import ScriptedPool
from tests.support.unsupervised_judge import UnsupervisedJudge

__all__ = ["chat_format", "model_folder"]

ANSWER = "<answer>1</answer>"
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
    tool = load_tool(ToolSpec(name="query", source=str(tmp_path / "store.py"), timeout_seconds=2))
    files = shop(tmp_path)
    oldest = await call(client, tool, "SELECT MAX(age) FROM pets", files)
    assert (oldest.status, oldest.stdout) == ("ok", "[(7,)]\n")
    failed = await call(client, tool, "SELECT x FROM pets", files)
    assert (failed.status, failed.stderr) == ("error", "OperationalError: no such column: x\n")
    assert (await call(client, tool, "hang", files)).status == "timeout"
    assert (await call(client, tool, "exit", files)).stdout == ""
    assert (await call(client, tool, "leave", files)).status == "error"
    assert (await call(client, tool, "look", files)).stdout == "['.source', 'out', 'shop.sqlite']\n"
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


PLOTTER = """
import pathlib

def plot(size: int) -> str:
    'Writes files.'
    pathlib.Path("out/plot.png").write_bytes(bytes(range(256)) * (size // 256))
    pathlib.Path("out/note.txt").write_text("x = 1")
    pathlib.Path("out/link").symlink_to("/etc/passwd")
    return "done"
"""
READER = """
import pathlib

def score(row, answer, transcript):
    plot = pathlib.Path("out/plot.png")
    return (1.0, "plot") if plot.is_file() and len(plot.read_bytes()) == 1024 else (0.0, "no plot")
"""


async def test_function_tool_returns_files(client: JudgeClient, chat_format: ChatFormat, tmp_path: Path) -> None:
    """Files in ./out come back up to the limit; the model reads their names, and the checker their content."""
    (tmp_path / "kit.py").write_text(PLOTTER)
    (tmp_path / "checker.py").write_text(READER)
    tools = load_toolset([ToolSpec(name="plot", source=str(tmp_path / "kit.py"))])
    rewards = TaskRewards([RewardSpec(name="plot", type="Program", source=str(tmp_path / "checker.py"))])
    own = ChatFormat(chat_format.tokenizer, system_prompt="{tools}", tools=tools)
    large = MAX_RETURNED_BYTES + 1024
    rollouts = {}
    for size in (1024, large):
        turn = call_text("plot", {"size": size})
        pool: Any = ScriptedPool(own, lambda text, _, turn=turn: ANSWER if "<tool_response>" in text else turn)
        sampling = Sampling(max_response_tokens=4000)
        agent = Agent(chat_format=own, sampling=sampling, rollout=RolloutSpec(), limits=JudgeLimits())
        context = RolloutContext(agent=agent, pool=pool, judge=client, seed=(1,), rewards=rewards)
        ((rollouts[size],),) = await sample_groups([Problem("p", "q", "1")], samples=1, context=context)
    (call,) = rollouts[1024].calls
    assert call.response == "done\n[file note.txt: text/plain, 5 bytes]\n[file plot.png: image/png, 1024 bytes]"
    assert [(file.name, file.size) for file in call.files] == [("note.txt", 5), ("plot.png", 1024)]
    assert (rollouts[1024].reward, rollouts[1024].reason, call.status) == (1.0, "plot", "ok")
    (call,) = rollouts[large].calls
    assert call.response.endswith(f"image/png, {large} bytes, not returned: the limit of a call is 262144 bytes]")
    assert (rollouts[large].reward, call.files[1].content) == (0.0, None)
    path = tmp_path / "step.parquet"
    trajectory_store.write(path, rollouts.values())
    assert [row.calls for row in trajectory_store.read(path)] == [row.calls for row in rollouts.values()]


FORGED_FILES = f"""
import os
os.write({SOCKET}, b"5 1 a.txt\\nhello" + b"9999999 1 b\\n")
open("/tmp/out/c.txt", "w").write("c")
if os.fork() == 0:
    print("child")
"""


async def test_returned_files_forged_stream_harms_only_itself(client: JudgeClient) -> None:
    """A program may write to the stream of files, close it, or flood it: its status and the next call are unharmed."""
    limits = JudgeLimits(file_bytes=1000)
    forged = await client.run(FORGED_FILES, limits=limits)
    assert (forged.status, [file.name for file in forged.files]) == ("ok", ["a.txt"])
    flood = await client.run(f"import os\nfor _ in range(99): os.write({SOCKET}, bytes(65536))", "in", limits=limits)
    assert (flood.status, flood.files) == ("ok", [])
    closed = await client.run(f"import os\nos.close({SOCKET})\nopen('/tmp/out/x', 'w').close()", limits=limits)
    assert (closed.status, closed.files) == ("ok", [])
    script = "import sys\nprint(len(sys.stdin.read()))\nopen('out/a b.csv', 'w').write('1,2')\n1 / 0"
    clean = await client.run(script, "x" * 3_000_000, limits=limits)
    assert (clean.status, clean.stdout) == ("error", "3000000\n")
    assert clean.files == [ReturnedFile("a b.csv", 3, "MSwy")]
    assert (await client.run("import os\nprint(os.listdir('/tmp'))")).stdout == "[]\n"


TOOL_ATTACKS = {
    "hang": ("while True: pass", ("timeout",)),
    "flood": ("print('x' * 10_000_000)", ("output_limit",)),
    "memory": ("return 'x' * 10_000_000_000", ("error", "memory")),
    "recursion": (
        "import sys; sys.setrecursionlimit(10**9); f = lambda: f(); f()",
        ("error", "killed", "timeout", "memory"),
    ),
    "processes": ("import os\n    while True: os.fork()", ("error", "timeout")),
    "redis": ("import socket; socket.create_connection(('127.0.0.1', REDIS), 1)", ("error",)),
    "parent": ("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", ("error",)),
    "malformed": ("import os; os.write(1, b'\\xff\\x00{'); os._exit(0)", ("ok",)),
    "answer": (
        "import pathlib\n"
        "    for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/proc/1'):\n"
        "        for file in pathlib.Path(folder).rglob('*'):\n"
        "            if file.is_file() and file.stat().st_size < 10**6 and '.source' not in file.parts:\n"
        "                try: text = file.read_bytes()\n"
        "                except OSError: continue\n"
        "                assert b'hidden' b'-gold' not in text, file",
        ("ok", "timeout"),
    ),
}
"""Name -> body of a user's tool, and its allowed statuses."""


@pytest.mark.parametrize("attack", TOOL_ATTACKS)
async def test_tool_attack_has_its_status(
    judge: UnsupervisedJudge, client: JudgeClient, tmp_path: Path, attack: str
) -> None:
    """A hostile tool ends with the status of its limit; it reaches no answer, no Redis, and not the next call."""
    body, statuses = TOOL_ATTACKS[attack]
    body = body.replace("REDIS", str(judge.redis_port))
    (tmp_path / "kit.py").write_text(f"def attack() -> str:\n    'Attacks.'\n    {body}\n    return 'done'\n")
    (tmp_path / "checker.py").write_text("def score(row, answer, transcript):\n    return answer == row['answer']\n")
    rewards = TaskRewards([RewardSpec(name="gold", type="Program", source=str(tmp_path / "checker.py"))])
    response = Response(model_text="<answer>7</answer>", last_turn="", row={"answer": "hidden-gold"})
    assert (await rewards.grade(response, "gold", judge=client)).verdict == "wrong"
    tool = load_tool(ToolSpec(name="attack", source=str(tmp_path / "kit.py"), timeout_seconds=2))
    code, stdin = tool.snippet("{}", "", {})
    result = await client.run(code, stdin, limits=tool.limits(JudgeLimits()))
    assert result.status in statuses, result
    assert (await rewards.grade(response, "gold", judge=client)).verdict == "wrong"


CHECKER_ATTACKS = {
    "hang": "while True: pass",
    "flood": "print('x' * 10_000_000)",
    "memory": "return len(bytearray(10_000_000_000))",
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "exit": "import os; os._exit(0)",
    "nan": "return float('nan')",
    "above": "return 1.5",
    "text": "return '1'",
    "malformed": "import os; os.write(1, b'{\"score\": 1'); os._exit(0)",
    "two_scores": 'import os; os.write(1, b\'{"score": 1, "reason": ""}\\n\')',
}
"""Name -> body of a checker that fails."""


@pytest.mark.parametrize("attack", CHECKER_ATTACKS)
async def test_checker_attack_scores_no_response(client: JudgeClient, tmp_path: Path, attack: str) -> None:
    """A checker that fails, or that returns no score, excludes the response: it is neither right nor wrong."""
    body = f"def score(row, answer, transcript):\n    {CHECKER_ATTACKS[attack]}\n    return 1.0\n"
    (tmp_path / "checker.py").write_text(body)
    spec = RewardSpec(name="bad", type="Program", source=str(tmp_path / "checker.py"), timeout_seconds=1)
    response = Response(model_text="<answer>7</answer>", last_turn="", row={"answer": "7"})
    grade = await TaskRewards([spec]).grade(response, "bad", judge=client)
    assert (grade.verdict, grade.score) == ("internal", 0.0)
    assert grade.reason.startswith("reward bad: the checker ")
