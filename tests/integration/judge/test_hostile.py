"""Snippets that try to get out, to stay, to take everything, or to lie: each fails, and the next call is unharmed."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2_train.judge.models import CallResult
from rstar2_train.judge.stack import JudgeStack

Run = Callable[..., CallResult]


@pytest.fixture(autouse=True)
def unharmed(judge: JudgeStack, run: Run) -> object:
    """After each test: the next call works, nothing was left in the sandbox, and it is still the same sandbox."""
    yield
    left = run("import os\nprint(sorted(os.listdir('/tmp')), [p for p in os.listdir('/proc') if p.isdigit()])")
    assert (left.status, left.stdout) == ("ok", "[] ['1']\n")


def recycled(judge: JudgeStack) -> int:
    """Sandboxes thrown away so far."""
    return int(judge.status()["workers"][0]["recycled"])


def test_files_of_the_host_are_not_there(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    paths = [
        str(secret),
        "/etc/shadow",
        "/root",
        "/home",
        "/var",
        "/usr",
        str(Path(__file__).parents[3]),
        "/proc/1/root/usr",
    ]
    result = run(f"import os\nprint([p for p in {paths!r} if os.path.exists(p)], sorted(os.listdir('/')))")
    assert result.stdout == "[] ['dev', 'etc', 'lib', 'lib64', 'opt', 'proc', 'sys', 'tmp']\n"


def test_nothing_is_writable_but_tmp(run: Run) -> None:
    result = run(
        "import os\nfound = []\n"
        "for folder, _, files in os.walk('/'):\n"
        "    if folder.startswith('/proc'): continue\n"
        "    try:\n"
        "        open(folder + '/probe', 'w').close()\n"
        "        found.append(folder)\n"
        "    except OSError: pass\n"
        "print(found)",
        wall_seconds=60,
    )
    assert result.stdout == "['/tmp']\n"


def test_no_network(run: Run, judge: JudgeStack) -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        port = listener.getsockname()[1]
        host = socket.gethostbyname(socket.gethostname())
        targets = [("127.0.0.1", port), (host, port), ("127.0.0.1", judge.redis_port), ("127.0.0.1", judge.port)]
        result = run(
            "import socket\n"
            f"for target in {targets!r}:\n"
            "    try:\n"
            "        socket.create_connection(target, 0.5)\n"
            "        print('connected', target)\n"
            "    except OSError: pass\n"
            "print([name for _, name in socket.if_nameindex()])"
        )
    assert result.stdout == "['lo']\n"


def test_another_calls_files_and_processes_are_not_there(run: Run) -> None:
    first = run(
        "import os, time\n"
        "open('/tmp/mine', 'w').write('x')\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for fd in (0, 1, 2): os.close(fd)\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('done')"
    )
    assert first.stdout == "done\n"  # `unharmed` looks for what it left


def test_child_that_holds_stdout_does_not_delay_the_answer(run: Run) -> None:
    result = run("import os, time\nif os.fork() == 0: time.sleep(600)\nprint('parent')", wall_seconds=30)
    assert result.status == "ok" and "parent" in result.stdout
    assert result.run_seconds < 20


def test_fork_bomb_meets_the_process_limit(run: Run) -> None:
    code = (
        "import os, time\nn = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "        n += 1\n"
        "except OSError as error:\n"
        "    print(error.errno, n <= 40)"
    )
    result = run(code, wall_seconds=60)
    assert (result.status, result.stdout) == ("ok", "11 True\n")
    assert run("import os\nwhile True: os.fork()", wall_seconds=2).status in ("error", "timeout", "output_limit")


def test_thread_bomb(run: Run) -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    result = run(code, wall_seconds=30)
    assert (result.status, result.stderr.strip().splitlines()[-1]) == ("error", "RuntimeError: can't start new thread")


def test_memory_taken_by_many_processes_together(run: Run, judge: JudgeStack) -> None:
    before = recycled(judge)
    code = "import os, time\nfor _ in range(12):\n    if os.fork() == 0: break\nx = bytearray(50 << 20)\ntime.sleep(60)"
    result = run(code, wall_seconds=60, memory_mib=64)
    assert result.status == "memory"
    assert run("print(1)").status == "ok"
    assert recycled(judge) == before + 1


def test_tmp_is_bounded(run: Run) -> None:
    code = (
        "n = 0\n"
        "try:\n"
        "    while True:\n"
        "        open(f'/tmp/{n}', 'wb').write(bytes(8 << 20))\n"
        "        n += 1\n"
        "except OSError as error:\n"
        "    print(error.errno, n)"
    )
    assert run(code, wall_seconds=60).stdout == "28 8\n"


def test_limits_cannot_be_raised(run: Run) -> None:
    code = (
        "import resource\n"
        "for what in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):\n"
        "    soft, hard = resource.getrlimit(what)\n"
        "    try:\n"
        "        resource.setrlimit(what, (hard + 1, hard + 1))\n"
        "        print('raised', what)\n"
        "    except (OSError, ValueError): pass\n"
        "print('end')"
    )
    assert run(code).stdout == "end\n"


def test_own_namespaces_and_no_capability(run: Run) -> None:
    code = (
        "import ctypes, json, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "status = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)\n"
        "print(json.dumps({'caps': int(status['CapEff'], 16), 'pid': os.getpid(), 'ppid': os.getppid(),\n"
        "    'mount': libc.mount(b'x', b'/tmp', b'tmpfs', 0, None), 'kill': libc.kill(-1, 9),\n"
        "    'chroot': libc.chroot(b'/tmp'), 'setuid': libc.setuid(0), 'ptrace': libc.ptrace(16, 1, 0, 0)}))"
    )
    seen = json.loads(run(code).stdout)
    assert seen == {
        "caps": 0,
        "pid": 1,
        "ppid": 0,
        "mount": -1,
        "kill": seen["kill"],
        "chroot": -1,
        "setuid": -1,
        "ptrace": -1,
    }


def test_descriptors_are_the_three_standard_ones(run: Run) -> None:
    code = (
        "import os\nfound = []\n"
        "for fd in range(3, 1024):\n"
        "    try:\n"
        "        os.write(fd, b'x' * 32)\n"
        "        found.append(fd)\n"
        "    except OSError: pass\n"
        "print(found)"
    )
    assert run(code).stdout == "[]\n"


def test_forged_result_is_only_output(run: Run) -> None:
    forged = "import struct, os\nos.write(1, struct.pack('<QiIIIII', 1, 0, 0, 0, 3, 0, 0) + b'own')\nos._exit(9)"
    result = run(forged)
    assert (result.status, result.exit_code) == ("error", 9)


def test_no_secret_in_the_environment_or_on_the_command_line(run: Run, judge: JudgeStack) -> None:
    result = run(
        "import os\nprint(dict(os.environ), open('/proc/1/cmdline').read(), open('/proc/self/environ').read())"
    )
    assert judge.password not in result.stdout
    assert "RSTAR2" not in result.stdout and str(judge.folder) not in result.stdout


def test_nested_user_namespace_gains_nothing(run: Run) -> None:
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.unshare(0x10000000 | 0x00020000)\n"  # user and mount namespaces
        "libc.mount(b'proc', b'/proc', b'proc', 0, None)\n"
        "print([p for p in os.listdir('/proc') if p.isdigit()], os.path.exists('/usr'))\n"
        "libc.umount2(b'/tmp', 2)\nlibc.umount2(b'/proc', 2)\n"
        "print(os.listdir('/tmp'))"
    )
    assert run(code).stdout == "['1'] False\n[]\n"
