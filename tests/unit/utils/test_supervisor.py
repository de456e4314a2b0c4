"""The supervisor, with real processes: ready, restarted, given up, stopped, found again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rstar2_train.utils.supervisor import Child, ChildFailed, Supervisor, end_leftovers

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def supervisor(folder: Path, *, say: Callable[[str], None] = print) -> Supervisor:
    return Supervisor(logs=folder / "logs", register=folder / "children.json", say=say)


async def until(condition, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_start_waits_until_ready_and_stop_ends_it(tmp_path: Path) -> None:
    mark = tmp_path / "ready"

    async def ready() -> bool:
        return mark.exists()

    children = supervisor(tmp_path)
    await children.start(
        Child("a", python(f"import time; open({str(mark)!r}, 'w').close(); time.sleep(60)"), ready=ready)
    )
    assert mark.exists()
    assert children.health() == {"a": "ready"}
    pid = json.loads((tmp_path / "children.json").read_text())[0]["pid"]
    await children.stop()
    assert not psutil.pid_exists(pid)
    assert json.loads((tmp_path / "children.json").read_text()) == []


async def test_one_that_dies_before_it_is_ready_is_reported_with_its_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    children = supervisor(tmp_path)
    bad = Child("bad", python("print('no such flag'); raise SystemExit(3)"), ready=never, advice="look at spec.x")
    with pytest.raises(ChildFailed) as failed:
        await children.start(bad)
    *_, excerpt, last = str(failed.value).splitlines()
    assert excerpt == "  no such flag"
    assert last == f"bad exited with 3 before it was ready; look at spec.x (log: {tmp_path / 'logs' / 'bad.log'})"
    await children.stop()


async def test_a_killed_child_is_restarted_and_a_person_told(tmp_path: Path) -> None:
    said: list[str] = []
    children = supervisor(tmp_path, say=said.append)
    await children.start(Child("a", SLEEP))
    first = json.loads((tmp_path / "children.json").read_text())[0]["pid"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: children.health().get("a") == "ready (1 restarts)")
    second = json.loads((tmp_path / "children.json").read_text())[-1]["pid"]
    assert second != first
    assert said == ["a was ended by SIGKILL; starting it again", "a is ready again"]
    await children.stop()
    assert not psutil.pid_exists(second)


def with_a_child_of_its_own(note: Path) -> list[str]:
    """A child like vLLM's server, whose engine is a process of its own in the same session."""
    return python(
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(note)!r}, 'a').write(f'{{p.pid}}\\n')\n"
        "time.sleep(60)"
    )


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_what_a_killed_child_had_started_is_ended_before_it_starts_again(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    children = supervisor(tmp_path)
    await children.start(Child("engine", with_a_child_of_its_own(note)))
    await until(lambda: note.exists() and note.read_text().count("\n") == 1)
    os.kill(json.loads((tmp_path / "children.json").read_text())[0]["pid"], signal.SIGKILL)
    await until(lambda: note.read_text().count("\n") == 2)
    first, second = map(int, note.read_text().split())
    await until(lambda: gone(first))
    assert not gone(second)
    await children.stop()
    await until(lambda: gone(second))


def test_what_a_dead_child_of_an_earlier_run_had_started_is_found(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    leader = subprocess.Popen(with_a_child_of_its_own(note), start_new_session=True)
    while not (note.exists() and note.read_text().endswith("\n")):
        pass
    started = psutil.Process(leader.pid).create_time()
    register = tmp_path / "children.json"
    register.write_text(json.dumps([{"pid": leader.pid, "started": started}]))
    leader.kill()
    leader.wait()
    assert end_leftovers(register) == 1
    assert gone(int(note.read_text()))


async def test_one_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    children = supervisor(tmp_path)
    await children.start(Child("a", python("import time; time.sleep(0.2); raise SystemExit(9)"), max_restarts=2))
    error = await asyncio.wait_for(children.given_up, 30)
    assert "a died 3 times: the last time it exited with 9" in str(error)
    await children.stop()


async def test_run_returns_the_exit_code_and_does_not_restart(tmp_path: Path) -> None:
    children = supervisor(tmp_path)
    assert await children.run(Child("once", python("raise SystemExit(75)"))) == 75
    assert children.health() == {}
    await children.stop()


async def test_one_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))\n"
        "time.sleep(60)"
    )

    async def ready() -> bool:
        return (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != ""

    children = supervisor(tmp_path)
    await children.start(Child("stubborn", python(code), ready=ready, stop_seconds=0.3))
    grandchild = psutil.Process(int((tmp_path / "pid").read_text()))
    await children.stop()
    await until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE)


def test_children_die_with_a_killed_parent_or_are_found_by_the_next(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from rstar2_train.utils.supervisor import Child, Supervisor

async def main():
    folder = Path({str(tmp_path)!r})
    children = Supervisor(logs=folder / "logs", register=folder / "children.json", say=print)
    await children.start(Child("polite", {SLEEP!r}))
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / "up")!r}, 'w')"
    stubborn += "; time.sleep(60)"
    async def ready():
        return Path({str(tmp_path / "up")!r}).exists()
    await children.start(Child("stubborn", [sys.executable, "-S", "-c", stubborn], ready=ready))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    pids = [entry["pid"] for entry in json.loads((tmp_path / "children.json").read_text())]
    assert len(pids) == 2
    psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)][:1], timeout=10)
    end_leftovers(tmp_path / "children.json")
    for pid in pids:
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "children.json").exists()


def test_leftovers_never_ends_a_process_that_only_has_the_same_pid(tmp_path: Path) -> None:
    register = tmp_path / "children.json"
    register.write_text(json.dumps([{"pid": os.getpid(), "started": 1.0}]))
    assert end_leftovers(register) == 0
