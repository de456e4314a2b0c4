"""The supervisor, with real processes: readiness, restarts, failures, signals, stop, and leftovers of a killed run."""

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

from rstar2_train.utils.leftovers import stop_leftovers
from rstar2_train.utils.supervisor import Child, ChildFailed, StopRequested, Supervisor, temporary_state
from tests.support import waiting
from tests.support.processes import has_ended

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def supervisor(folder: Path, *, notify: Callable[[str], None] = print) -> Supervisor:
    return Supervisor(logs=folder / "logs", register=folder / "children.json", notify=notify)


async def until(condition, seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_start_waits_for_readiness(tmp_path: Path) -> None:
    """The register has the pid as long as the child runs."""
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


async def test_start_child_exits_early_raises_with_log(tmp_path: Path) -> None:
    """The message has the end of the log, the exit code and the advice."""

    async def never() -> bool:
        return False

    children = supervisor(tmp_path)
    bad = Child("bad", python("print('no such flag'); raise SystemExit(3)"), ready=never, advice="look at spec.x")
    with pytest.raises(ChildFailed) as failed:
        await children.start(bad)
    *_, excerpt, last = str(failed.value).splitlines()
    assert excerpt == "  no such flag"
    assert last == f"bad exited with code 3 before it was ready; look at spec.x (log: {tmp_path / 'logs' / 'bad.log'})"
    await children.stop()


async def test_killed_child_is_restarted_with_a_message(tmp_path: Path) -> None:
    """`notify` gets a message about the exit and one about the readiness."""
    messages: list[str] = []
    children = supervisor(tmp_path, notify=messages.append)
    await children.start(Child("a", SLEEP))
    first = json.loads((tmp_path / "children.json").read_text())[0]["pid"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: children.health().get("a") == "ready (1 restart)")
    second = json.loads((tmp_path / "children.json").read_text())[-1]["pid"]
    assert second != first
    assert messages == ["a was killed by SIGKILL; restarting it", "a is ready again"]
    await children.stop()
    assert not psutil.pid_exists(second)


def with_subprocess(note: Path) -> list[str]:
    """Return a program like vLLM's server, whose engine is another process in the same session."""
    return python(
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(note)!r}, 'a').write(f'{{p.pid}}\\n')\n"
        "time.sleep(60)"
    )


async def test_restart_kills_the_childs_own_children_first(tmp_path: Path) -> None:
    """All processes of its session are killed."""
    note = tmp_path / "pids"
    children = supervisor(tmp_path)
    await children.start(Child("engine", with_subprocess(note)))
    await until(lambda: note.exists() and note.read_text().count("\n") == 1)
    os.kill(json.loads((tmp_path / "children.json").read_text())[0]["pid"], signal.SIGKILL)
    await until(lambda: note.read_text().count("\n") == 2)
    first, second = map(int, note.read_text().split())
    await until(lambda: has_ended(first))
    assert not has_ended(second)
    await children.stop()
    await until(lambda: has_ended(second))


def test_stop_leftovers_finds_session_of_dead_child(tmp_path: Path) -> None:
    """The child of a killed run is dead, but a process of its session runs."""
    note = tmp_path / "pids"
    leader = subprocess.Popen(with_subprocess(note), start_new_session=True)
    while not (note.exists() and note.read_text().endswith("\n")):
        pass
    started = psutil.Process(leader.pid).create_time()
    register = tmp_path / "children.json"
    register.write_text(json.dumps([{"pid": leader.pid, "started": started}]))
    leader.kill()
    leader.wait()
    assert stop_leftovers(register) == 1
    assert has_ended(int(note.read_text()))


async def test_child_that_keeps_dying_is_a_failure(tmp_path: Path) -> None:
    """More restarts than allowed end the work with ChildFailed."""
    dying = Child("a", python("import time; time.sleep(0.2); raise SystemExit(9)"), max_restarts=2)

    async def work(children: Supervisor) -> None:
        await children.start(dying)
        await asyncio.sleep(600)

    async with supervisor(tmp_path) as children:
        with pytest.raises(ChildFailed, match="a died 3 times; the last time it exited with code 9"):
            await children.run_until_stopped(work(children))


async def test_run_until_stopped_returns_the_result(tmp_path: Path) -> None:
    """Without a signal or a failure."""
    async with supervisor(tmp_path) as children:
        assert await children.run_until_stopped(asyncio.sleep(0, "result")) == "result"


async def test_run_until_stopped_signal_cancels_the_work(tmp_path: Path) -> None:
    """The children are stopped at the end of the context; exit code 143 is that of SIGTERM in a shell."""

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(StopRequested) as stop:
        async with supervisor(tmp_path) as children:
            await children.start(Child("a", SLEEP))
            pid = json.loads((tmp_path / "children.json").read_text())[0]["pid"]
            await children.run_until_stopped(work())
    assert stop.value.exit_code == 143
    assert has_ended(pid)


async def test_run_until_stopped_calls_on_stop_per_signal(tmp_path: Path) -> None:
    """Work that stops by itself is not cancelled, and its result is returned. A failure after a signal is raised."""
    stop, calls = asyncio.Event(), list[int]()

    def on_stop() -> None:
        calls.append(1)
        stop.set()

    async def work(children: Supervisor) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: len(calls) == 2)
        children.fail(ChildFailed("after the signal"))
        return "result"

    async with supervisor(tmp_path) as children:
        with pytest.raises(ChildFailed, match="after the signal"):
            await children.run_until_stopped(work(children), on_stop=on_stop)
    assert len(calls) == 2


async def test_run_until_stopped_after_signal_stops_directly(tmp_path: Path) -> None:
    """A signal between two works is not lost."""
    async with supervisor(tmp_path) as children:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        with pytest.raises(StopRequested):
            await children.run_until_stopped(asyncio.sleep(60))


@pytest.mark.parametrize(("error", "kept"), [(ChildFailed("engine"), True), (OSError("port"), False)])
def test_temporary_state_is_kept_after_child_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, kept: bool
) -> None:
    """Its logs are named in the message; other errors do not need them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(type(error)), temporary_state("test-") as folder:
        raise error
    assert (folder.parent, folder.exists()) == (tmp_path, kept)
    with temporary_state("test-") as folder:
        pass
    assert not folder.exists()


async def test_run_returns_exit_code_without_restart(tmp_path: Path) -> None:
    """The child is not listed any more."""
    children = supervisor(tmp_path)
    assert await children.run(Child("once", python("raise SystemExit(75)"))) == 75
    assert children.health() == {}
    await children.stop()


async def test_stop_kills_child_that_ignores_sigterm(tmp_path: Path) -> None:
    """SIGKILL after the grace period reaches its own children too."""
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
    grandchild = int((tmp_path / "pid").read_text())
    await children.stop()
    await until(lambda: has_ended(grandchild))


def test_killed_parent_leaves_no_children(tmp_path: Path) -> None:
    """A child dies with its parent, or the next run stops it."""
    code = f"""
import asyncio, os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from rstar2_train.utils.supervisor import Child, Supervisor

async def main():
    folder = Path({str(tmp_path)!r})
    children = Supervisor(logs=folder / "logs", register=folder / "children.json", notify=print)
    await children.start(Child("polite", {SLEEP!r}))
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(tmp_path / "up")!r}, 'w')"
    stubborn += "; time.sleep(60)"
    async def ready():
        return Path({str(tmp_path / "up")!r}).exists()
    await children.start(Child("stubborn", [sys.executable, "-S", "-c", stubborn], ready=ready))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=300)
    pids = [entry["pid"] for entry in json.loads((tmp_path / "children.json").read_text())]
    assert len(pids) == 2
    waiting.until(lambda: has_ended(pids[0]), "the kernel ends a child whose parent has ended")
    stop_leftovers(tmp_path / "children.json")
    waiting.until(lambda: all(map(has_ended, pids)), "the next run stops the other child")
    assert not (tmp_path / "children.json").exists()


@pytest.mark.parametrize("own", [True, False])
def test_guard_stops_children_of_a_killed_parent(tmp_path: Path, own: bool) -> None:
    """Also a child that lost the kernel's SIGTERM. Children of another run in the same folder stay."""
    stubborn = python(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(stubborn, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None and child.stdout.readline()
    parent, started = (41 if own else 42), psutil.Process(child.pid).create_time()
    entry = {"name": "engine-0", "pid": child.pid, "started": started, "parent": parent}
    (tmp_path / "children.json").write_text(json.dumps([entry]))
    guard = [sys.executable, "-m", "rstar2_train.utils.leftovers", str(tmp_path / "children.json"), "41", "0.1"]
    with child:
        subprocess.run(guard, stdin=subprocess.DEVNULL, check=True, timeout=300)
        assert has_ended(child.pid) == own
        child.kill()


async def test_supervisor_has_a_guard_from_its_first_child(tmp_path: Path) -> None:
    """The guard ends with the supervisor. A supervisor without children has none."""
    async with supervisor(tmp_path) as running:
        assert psutil.Process().children() == []
        assert await running.run(Child("true", ["true"])) == 0
        (guard,) = psutil.Process().children()
        assert "rstar2_train.utils.leftovers" in guard.cmdline()
    assert has_ended(guard.pid)


def test_stop_leftovers_ignores_reused_pid(tmp_path: Path) -> None:
    """The start time must be that of the register."""
    register = tmp_path / "children.json"
    register.write_text(json.dumps([{"pid": os.getpid(), "started": 1.0}]))
    assert stop_leftovers(register) == 0
