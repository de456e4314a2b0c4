"""The two commands as a person meets them: what is refused, what is said, and a worker without root."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from rstar2_train.judge.local import LocalJudge
from rstar2_train.judge.sandbox.oci_bundle import find_runsc

COMMAND = [sys.executable, "-m", "rstar2_train.judge"]


def judge_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def test_open_address_is_refused() -> None:
    ended = judge_command("api", "--redis", "redis://127.0.0.1:1/0", "--host", "0.0.0.0")
    assert ended.returncode == 78
    assert "run code on it" in ended.stderr and "Traceback" not in ended.stderr


def test_port_in_use(judge: LocalJudge) -> None:
    ended = judge_command("api", "--redis", judge.redis_url, "--port", str(judge.port))
    assert ended.returncode == 78
    assert f"cannot listen on 127.0.0.1:{judge.port}" in ended.stderr and "Traceback" not in ended.stderr


def test_no_runsc_says_how_to_get_it(tmp_path: Path) -> None:
    ended = judge_command(
        "worker", "--redis", "redis://127.0.0.1:1/0", "--executors", "1", RSTAR2_RUNSC=str(tmp_path / "none")
    )
    assert ended.returncode == 78
    assert "runsc (gVisor) was not found" in ended.stderr and "make setup" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_runsc_that_cannot_start_is_told(judge: LocalJudge, tmp_path: Path) -> None:
    broken = tmp_path / "runsc"
    broken.write_text("#!/bin/sh\necho this kernel will not do >&2\nexit 1\n")
    broken.chmod(0o755)
    arguments = ["worker", "--redis", judge.redis_url, "--executors", "1", "--prefix", "elsewhere"]
    ended = judge_command(*arguments, RSTAR2_RUNSC=str(broken), RSTAR2_REDIS_PASSWORD=judge.password)
    assert ended.returncode == 78
    assert "no sandbox could be started here" in ended.stderr and "this kernel will not do" in ended.stderr


def test_no_compiler_says_so(tmp_path: Path) -> None:
    ended = judge_command(
        "worker", "--redis", "redis://127.0.0.1:1/0", "--executors", "1", "--isolation", "none",
        RSTAR2_CACHE=str(tmp_path), PATH="/nonexistent", CC="",
    )  # fmt: skip
    assert ended.returncode == 78
    assert "no C compiler" in ended.stderr and "apt install" in ended.stderr


def test_wrong_redis_password_is_told(judge: LocalJudge) -> None:
    arguments = ["worker", "--redis", judge.redis_url, "--executors", "1", "--lanes", "bare"]
    ended = judge_command(*arguments, RSTAR2_REDIS_PASSWORD="wrong")
    assert ended.returncode == 78
    assert "password" in ended.stderr and "Traceback" not in ended.stderr


def test_state_folder_of_another_worker_is_refused(judge: LocalJudge) -> None:
    state = judge.folder / "worker-state"
    ended = judge_command("worker", "--redis", judge.redis_url, "--executors", "1", "--state", str(state))
    assert ended.returncode == 78 and "another judge worker" in ended.stderr


def test_token_is_asked_for(judge: LocalJudge) -> None:
    environment = os.environ | {"RSTAR2_REDIS_PASSWORD": judge.password, "RSTAR2_JUDGE_TOKEN": "open-sesame"}
    command = [*COMMAND, "api", "--redis", judge.redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as api:
        try:
            assert api.stdout is not None
            url = f"http://127.0.0.1:{json.loads(api.stdout.readline())['port']}"
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                answer = httpx.post(f"{url}/v1/run", json={"code": "1"}, headers=headers, trust_env=False)
                assert answer.status_code == 401
            right = {"Authorization": "Bearer open-sesame"}
            answer = httpx.post(f"{url}/v1/run", json={"code": "1"}, headers=right, timeout=60, trust_env=False)
            assert answer.json()["stdout"] == "1\n"
        finally:
            api.terminate()


def test_isolation_none_runs_and_warns(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with LocalJudge(tmp_path, executors=1, isolation="none", lanes=("bare",)) as stack:
        assert "UNPROTECTED" in stack.log("worker").upper() and "WARNING" in stack.log("worker")
        assert stack.status()["workers"][0]["isolation"] == "none"
        for code, status in (
            ("print(6 * 7)", "ok"),
            ("1 / 0", "error"),
            ("bytearray(10**10)", "memory"),
            ("while True: pass", "timeout"),
            ("while True: print('x' * 999)", "output_limit"),
        ):
            body = {"code": code, "limits": {"wallSeconds": 2, "outputBytes": 4096}}
            answer = httpx.post(f"{stack.url}/v1/run", json=body, timeout=60, trust_env=False).json()
            assert answer["status"] == status, answer
        daemon = "import os, time\npid = os.fork()\nif not pid:\n    os.setsid()\n    time.sleep(600)\nprint(pid)"
        answer = httpx.post(f"{stack.url}/v1/run", json={"code": daemon}, timeout=60, trust_env=False).json()
        assert answer["status"] == "ok"
        assert not Path(f"/proc/{int(answer['stdout'])}").exists()


@dataclass(frozen=True)
class OrdinaryUser:
    """`prefix`: a command that runs the rest as `nobody`; `home`: a folder of that user, with what it needs to see."""

    prefix: list[str]
    home: Path


@pytest.fixture
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Somebody else on this machine, in a mount namespace where private folders of ours are bound into a public one.

    Needs root. Not under pytest's temporary folder: a second pytest on the machine makes that private again.
    """
    if os.geteuid() != 0:
        pytest.skip("already an ordinary user: every other test here ran without root")
    for tool in ("setpriv", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} (util-linux) is needed to become an ordinary user")
    nobody = pwd.getpwnam("nobody")
    folders = {
        "python": Path(sys.base_prefix),
        "packages": Path(sysconfig.get_path("purelib")),
        "repository": Path(__file__).parents[3],
    }
    with tempfile.TemporaryDirectory(prefix="rstar2-ordinary-") as directory:
        home = Path(directory)
        home.chmod(0o755)
        for name in folders:
            (home / name).mkdir()
        (home / "runsc").touch()
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        sources = {**folders, "runsc": Path(find_runsc()).resolve()}
        mounts = " && ".join(f'mount --bind "{source}" "{home / name}"' for name, source in sources.items())
        become = f"setpriv --reuid {nobody.pw_uid} --regid {nobody.pw_gid} --clear-groups"
        yield OrdinaryUser(["unshare", "--mount", "sh", "-c", f'{mounts} && exec {become} "$@"', "sh"], home)


def test_worker_as_an_ordinary_user(judge: LocalJudge, ordinary_user: OrdinaryUser, tmp_path: Path) -> None:
    """Rootless runsc: the same sandbox, the same canary, under a user that owns nothing."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = ordinary_user.home
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": f"{home / 'repository'}{os.pathsep}{home / 'packages'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": str(home / "python" / "lib"),
        "RSTAR2_RUNSC": str(home / "runsc"),
        "RSTAR2_CACHE": str(home / "cache"),
        "RSTAR2_REDIS_PASSWORD": judge.password,
    }
    interpreter = str(home / "python" / "bin" / version)
    arguments = ["-m", "rstar2_train.judge", "worker", "--redis", judge.redis_url, "--executors", "1"]
    arguments += ["--prefix", "ordinary", "--lanes", "bare", "--state", str(home / "state")]
    command = [*ordinary_user.prefix, interpreter, *arguments]
    log = (tmp_path / "worker.log").open("w+")
    worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd="/")
    api_command = [*COMMAND, "api", "--redis", judge.redis_url, "--prefix", "ordinary"]
    api_environment = os.environ | {"RSTAR2_REDIS_PASSWORD": judge.password}
    api = subprocess.Popen(api_command, stdout=subprocess.PIPE, text=True, env=api_environment)
    try:
        assert api.stdout is not None
        url = f"http://127.0.0.1:{json.loads(api.stdout.readline())['port']}"
        body = {"code": "import os\nprint(os.getuid(), os.getpid(), os.listdir('/tmp'))"}
        answer = httpx.post(f"{url}/v1/run", json=body, timeout=180, trust_env=False).json()
        assert (answer["status"], answer["stdout"]) == ("ok", "65534 1 []\n"), (answer, Path(log.name).read_text())
        assert Path(f"/proc/{worker.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        bomb = "import os, time\nfor _ in range(12):\n    if os.fork() == 0: break\n"
        bomb += "x = bytearray(50 << 20)\ntime.sleep(60)"
        body = {"code": bomb, "limits": {"wallSeconds": 60, "memoryMiB": 64}}
        assert httpx.post(f"{url}/v1/run", json=body, timeout=180, trust_env=False).json()["status"] == "memory"
    finally:
        for process in (worker, api):
            process.terminate()
            process.wait(60)
        log.close()
