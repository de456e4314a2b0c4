"""The commands `python -m rstar2_train.judge api|worker`: their errors and warnings, and a worker without root."""

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

from rstar2_train.judge.sandbox.oci_bundle import find_runsc
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.waiting import until

COMMAND = [sys.executable, "-m", "rstar2_train.judge"]


def judge_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that exits by itself."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=300, env=os.environ | environment
    )


def test_api_open_address_without_token_is_rejected() -> None:
    """The API does not start on an address that other machines can reach, if it has no token."""
    done = judge_command("api", "--redis", "redis://127.0.0.1:1/0", "--host", "0.0.0.0")
    assert done.returncode == 78
    assert "run code on it" in done.stderr and "Traceback" not in done.stderr


def test_api_port_in_use_is_reported(judge: UnsupervisedJudge) -> None:
    """The API names an address that it cannot listen on."""
    done = judge_command("api", "--redis", judge.redis_url, "--port", str(judge.port))
    assert done.returncode == 78
    assert f"cannot listen on 127.0.0.1:{judge.port}" in done.stderr and "Traceback" not in done.stderr


def test_worker_without_runsc_names_the_fix(tmp_path: Path) -> None:
    """A worker without runsc exits with the ways to install it."""
    done = judge_command(
        "worker", "--redis", "redis://127.0.0.1:1/0", "--executors", "1", RSTAR2_RUNSC=str(tmp_path / "none")
    )
    assert done.returncode == 78
    assert "runsc (gVisor) was not found" in done.stderr and "make setup" in done.stderr
    assert "Traceback" not in done.stderr


def test_worker_broken_runsc_is_reported(judge: UnsupervisedJudge, tmp_path: Path) -> None:
    """A worker whose runsc does not start exits with the output of runsc."""
    broken = tmp_path / "runsc"
    broken.write_text("#!/bin/sh\necho this kernel is not supported >&2\nexit 1\n")
    broken.chmod(0o755)
    arguments = ["worker", "--redis", judge.redis_url, "--executors", "1", "--prefix", "other"]
    done = judge_command(*arguments, RSTAR2_RUNSC=str(broken), RSTAR2_REDIS_PASSWORD=judge.password)
    assert done.returncode == 78
    assert "No sandbox could be started" in done.stderr and "this kernel is not supported" in done.stderr


def test_worker_without_compiler_names_the_fix(tmp_path: Path) -> None:
    """A worker without a C compiler exits with the package to install."""
    done = judge_command(
        "worker", "--redis", "redis://127.0.0.1:1/0", "--executors", "1", "--isolation", "none",
        RSTAR2_CACHE=str(tmp_path), PATH="/nonexistent", CC="",
    )  # fmt: skip
    assert done.returncode == 78
    assert "No C compiler" in done.stderr and "apt install" in done.stderr


def test_worker_wrong_redis_password_is_reported(judge: UnsupervisedJudge) -> None:
    """A worker with a wrong password exits, and does not retry."""
    arguments = ["worker", "--redis", judge.redis_url, "--executors", "1", "--lanes", "bare"]
    done = judge_command(*arguments, RSTAR2_REDIS_PASSWORD="wrong")
    assert done.returncode == 78
    assert "password" in done.stderr and "Traceback" not in done.stderr


def test_worker_state_folder_in_use_is_rejected(judge: UnsupervisedJudge) -> None:
    """Two workers cannot share a state folder."""
    state = judge.folder / "worker-state"
    done = judge_command("worker", "--redis", judge.redis_url, "--executors", "1", "--state", str(state))
    assert done.returncode == 78 and "Another judge worker" in done.stderr


def test_api_requires_the_token(judge: UnsupervisedJudge) -> None:
    """The API runs a call only with the right token."""
    environment = os.environ | {"RSTAR2_REDIS_PASSWORD": judge.password, "RSTAR2_JUDGE_TOKEN": "open-sesame"}
    command = [*COMMAND, "api", "--redis", judge.redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as api:
        try:
            assert api.stdout is not None
            url = f"http://127.0.0.1:{json.loads(api.stdout.readline())['port']}"
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                response = httpx.post(f"{url}/v1/run", json={"code": "1"}, headers=headers, trust_env=False, timeout=60)
                assert response.status_code == 401
            right = {"Authorization": "Bearer open-sesame"}
            response = httpx.post(f"{url}/v1/run", json={"code": "1"}, headers=right, timeout=60, trust_env=False)
            assert response.json()["stdout"] == "1\n"
        finally:
            api.terminate()


def test_worker_isolation_none_runs_and_warns(tmp_path: Path) -> None:
    """Without isolation the worker prints a warning; limits and the kill of daemons still work."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with UnsupervisedJudge(tmp_path, executors=1, isolation="none", lanes=("bare",)) as judge:
        assert "UNPROTECTED" in judge.log("worker") and "WARNING" in judge.log("worker")
        assert judge.report()["isolation"] == "none"
        for code, status in (
            ("print(6 * 7)", "ok"),
            ("1 / 0", "error"),
            ("bytearray(10**10)", "memory"),
            ("while True: pass", "timeout"),
            ("while True: print('x' * 999)", "output_limit"),
        ):
            body = {"code": code, "limits": {"wallSeconds": 4, "outputBytes": 4096}}
            response = httpx.post(f"{judge.url}/v1/run", json=body, timeout=60, trust_env=False).json()
            assert response["status"] == status, response
        daemon = "import os, time\npid = os.fork()\nif not pid:\n    os.setsid()\n    time.sleep(600)\nprint(pid)"
        response = httpx.post(f"{judge.url}/v1/run", json={"code": daemon}, timeout=60, trust_env=False).json()
        assert response["status"] == "ok"
        until(lambda: not Path(f"/proc/{int(response['stdout'])}").exists(), "the daemon is killed")


@dataclass(frozen=True)
class UnprivilegedUser:
    """`prefix`: a command that runs its arguments as `nobody`. `home`: that user's folder with all files it needs."""

    prefix: list[str]
    home: Path


@pytest.fixture
def unprivileged_user() -> Iterator[UnprivilegedUser]:
    """The user `nobody`, in a mount namespace in which private folders of this user are bound into a public one.

    Needs root. The folder is not in pytest's temporary folder: another pytest on the machine makes that private again.
    """
    if os.geteuid() != 0:
        pytest.skip("this user is unprivileged already: all other tests ran without root")
    for tool in ("setpriv", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} (util-linux) is required to become an unprivileged user")
    user = pwd.getpwnam("nobody")
    folders = {
        "python": Path(sys.base_prefix),
        "packages": Path(sysconfig.get_path("purelib")),
        "repository": Path(__file__).parents[3],
    }
    with tempfile.TemporaryDirectory(prefix="rstar2-unprivileged-") as directory:
        home = Path(directory)
        home.chmod(0o755)
        for name in folders:
            (home / name).mkdir()
        (home / "runsc").touch()
        os.chown(home, user.pw_uid, user.pw_gid)
        sources = {**folders, "runsc": Path(find_runsc()).resolve()}
        mounts = " && ".join(f'mount --bind "{source}" "{home / name}"' for name, source in sources.items())
        become = f"setpriv --reuid {user.pw_uid} --regid {user.pw_gid} --clear-groups"
        yield UnprivilegedUser(["unshare", "--mount", "sh", "-c", f'{mounts} && exec {become} "$@"', "sh"], home)


def test_worker_as_unprivileged_user(
    judge: UnsupervisedJudge, unprivileged_user: UnprivilegedUser, tmp_path: Path
) -> None:
    """Rootless runsc: the same sandbox and the same isolation check, under a user that owns nothing."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    home = unprivileged_user.home
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
    arguments += ["--prefix", "unprivileged", "--lanes", "bare", "--state", str(home / "state")]
    command = [*unprivileged_user.prefix, interpreter, *arguments]
    log = (tmp_path / "worker.log").open("w+")
    worker = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd="/")
    api_command = [*COMMAND, "api", "--redis", judge.redis_url, "--prefix", "unprivileged"]
    api_environment = os.environ | {"RSTAR2_REDIS_PASSWORD": judge.password}
    api = subprocess.Popen(api_command, stdout=subprocess.PIPE, text=True, env=api_environment)
    try:
        assert api.stdout is not None
        url = f"http://127.0.0.1:{json.loads(api.stdout.readline())['port']}"
        body = {"code": "import os\nprint(os.getuid(), os.getpid(), os.listdir('/tmp'))"}
        response = httpx.post(f"{url}/v1/run", json=body, timeout=180, trust_env=False).json()
        assert (response["status"], response["stdout"]) == ("ok", "65534 1 []\n"), (
            response,
            Path(log.name).read_text(),
        )
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
