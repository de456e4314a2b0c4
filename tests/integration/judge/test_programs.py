"""Programs run in a sandbox as in CPython, and cells as in Jupyter: devices, time zones, locale, stdin, stacks."""

from collections.abc import Callable

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.tasks import RewardSpec
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import CallResult
from rstar2_train.rewards.task_rewards import Response, TaskRewards

ADD = "a, b = map(int, input().split())\n"

PROGRAMS = {
    "value-apart": ("import sys\nsys.stdout.write('42')", "42\n2\n"),
    "value-after-open-line": ("print(42, end='')\n7", "42\n7\n"),
    "device-stdin": ("print(open('/dev/stdin').read())", "3 4\n"),
    "descriptor-stdin": ("import os\nprint(os.read(0, 9), os.read(0, 9), os.isatty(0))", "b'3 4' b'' False\n"),
    "device-stdout": ("open('/dev/stdout', 'w').write('x')\nNone", "x"),
    "time-zone": ("from zoneinfo import ZoneInfo\nprint(ZoneInfo('UTC'))", "UTC\n"),
    "time-zones": (
        "from datetime import datetime\nfrom zoneinfo import ZoneInfo\n"
        "print(datetime(2024, 7, 1, tzinfo=ZoneInfo('Europe/Berlin')).utcoffset())",
        "2:00:00\n",
    ),
    "time-zone-of-c": (
        "import os, time\nos.environ['TZ'] = 'Asia/Tokyo'\ntime.tzset()\nprint(time.localtime(0).tm_hour)",
        "9\n",
    ),
    "locale": (
        "import locale\nprint(locale.setlocale(locale.LC_ALL, ''), locale.getpreferredencoding())",
        "C.UTF-8 utf-8\n",
    ),
    "byte-order-mark": ("\N{ZERO WIDTH NO-BREAK SPACE}print(1)", "1\n"),
    "own-module": ("open('helper.py', 'w').write('x = 5')\nimport helper\nprint(helper.x)", "5\n"),
    "large-stack": (
        "import threading\nthreading.stack_size(2**29)\nt = threading.Thread(target=print, args=(1,))\n"
        "t.start(); t.join()",
        "1\n",
    ),
    "await": ("import asyncio\nawait asyncio.sleep(0, 8)", "8\n"),
    "output-of-c": ("import ctypes\nprint('a')\nctypes.CDLL(None).puts(b'b');", "a\nb\n"),
    "three-descriptors": ("import os\nprint(sorted(os.listdir('/proc/self/fd')))", "['0', '1', '2', '3']\n"),
}


@pytest.mark.parametrize(("code", "output"), PROGRAMS.values(), ids=PROGRAMS)
def test_program_runs_as_outside_a_sandbox(run: Callable[..., CallResult], code: str, output: str) -> None:
    """The fourth descriptor is that of the listing itself."""
    result = run(code, "3 4")
    assert (result.status, result.stdout, result.stderr) == ("ok", output, "")


@pytest.mark.parametrize(
    "code", ["import sys\nprint(len(sys.stdin.read()))", "print(4 << 20)", "import os\nos.close(0)"]
)
def test_program_gets_or_ignores_a_large_stdin(run: Callable[..., CallResult], code: str) -> None:
    """A program may read all of its input, nothing, or close it."""
    result = run(code, "a" * (4 << 20))
    assert (result.status, result.stdout) == ("ok", "" if "close" in code else "4194304\n")


def test_program_with_large_texts_holds_no_event_loop(run: Callable[..., CallResult]) -> None:
    """The fixture of all tests reads the watches: escapes, bytes that are no UTF-8, long characters."""
    code = "import os, sys\nprint(input() == 'é' * (2 << 20))\nprint('\\1' * ((8 << 20) - 6))\n"
    result = run(code + "os.write(2, b'\\xff' * (8 << 20)) and None", "é" * (2 << 20), output_bytes=8 << 20)
    assert result.status == "ok" and result.stdout == "True\n" + "\1" * ((8 << 20) - 6) + "\n"
    assert result.stderr == "\N{REPLACEMENT CHARACTER}" * (8 << 20)


async def test_session_future_import_lasts(client: JudgeClient) -> None:
    """As in Jupyter; `input` finds an empty stdin, also as a device, and C's own output is that of its cell."""
    cells = {
        "from __future__ import annotations": "",
        "def f(x: NotYet): ...\nf.__annotations__['x']": "'NotYet'\n",
        "open('/dev/stdin').read()": "''\n",
        "import asyncio\nawait asyncio.sleep(0, 3)": "3\n",
        "import ctypes\nctypes.CDLL(None).puts(b'c');": "c\n",
    }
    async with client.session() as session:
        for code, output in cells.items():
            result = await session.run(code, limits=JudgeLimits(wall_seconds=60))
            assert (result.status, result.stdout) == ("ok", output), code


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("import sys\na,b=map(int,sys.stdin.read().split())\nsys.stdout.write(str(a+b))", "correct"),
        (ADD + "a+b", "wrong"),
        ("def main():\n    a,b=map(int,input().split())\n    print(a+b)\n    return 0\nmain()", "correct"),
        (ADD + "list(map(print,[a+b]))", "correct"),
        ("def solve():\n    a,b=map(int,input().split())\n    print(a+b)\n    return a+b\nsolve()", "correct"),
        ('import sys\na,b=map(int,sys.stdin.read().split())\nsys.stdout.write(f"{a+b}\\n")', "correct"),
    ],
)
async def test_reward_tests_adds_no_value_to_the_output(client: JudgeClient, code: str, verdict: str) -> None:
    """The program of an answer runs as `python FILE`."""
    rewards = TaskRewards([RewardSpec(name="code", type="Tests", timeout_seconds=60)])
    row = {"id": "1", "answer": "", "data": {"tests": [{"input": "3 4\n", "output": "7\n"}]}}
    text = f"<answer>\n```python\n{code}\n```\n</answer>"
    graded = await rewards.grade(Response(model_text=text, last_turn=text, row=row), "", judge=client)
    assert graded.verdict == verdict
