"""The judge's pure parts: status from a process's end, lane from imports, limits of a request, wire forms."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.__main__ import main
from rstar2_train.judge.api.app import as_lines
from rstar2_train.judge.executor import program
from rstar2_train.judge.outcome import MEMORY_EXIT, ProcessExit, to_result
from rstar2_train.judge.queue import connect, decode_result, encode_result
from rstar2_train.judge.sandbox.local import LocalSandbox
from rstar2_train.judge.sandbox.oci_bundle import SandboxSettings, bundle_config
from rstar2_train.judge.sandbox.rootfs import LANE_PACKAGES, SetupError, named_when_full, prepare_library, prepare_root
from rstar2_train.judge.types import MAX_CODE_BYTES, MAX_OUTPUT_BYTES, CallResult, QueuedCall, check_request
from rstar2_train.judge.worker.lanes import MAX_SCANNED, choose_lane
from rstar2_train.judge.worker.provider import LocalSandboxProvider
from rstar2_train.utils.auth import check_bind, secret

LANES = ("bare", "std", "numpy", "sympy")


@pytest.mark.parametrize(
    ("reason", "wait_status", "status", "exit_code"),
    [
        ("exited", 0, "ok", 0),
        ("exited", 3 << 8, "error", 3),
        ("exited", 11, "error", -11),
        ("exited", 9, "error", -9),
        ("exited", 64, "error", -64),
        ("exited", MEMORY_EXIT << 8, "memory", MEMORY_EXIT),
        ("timeout", 9, "timeout", None),
        ("output_limit", 9, "output_limit", None),
        ("setup_failed", 70 << 8, "internal", None),
    ],
)
def test_status_comes_from_the_end_of_the_process(
    reason: str, wait_status: int, status: str, exit_code: int | None
) -> None:
    result = to_result(ProcessExit(reason, wait_status, 0.5, b"status: ok\n\xff", b""))
    assert (result.status, result.exit_code, result.run_seconds) == (status, exit_code, 0.5)
    assert result.stdout == "status: ok\n\ufffd"


def test_signal_is_named() -> None:
    assert to_result(ProcessExit("exited", 11, 0.0, b"", b"")).stderr == "ended by signal 11 (SIGSEGV)\n"


@pytest.mark.parametrize(
    ("code", "lane"),
    [
        ("print(1)", "bare"),
        ("import math", "bare"),
        ("import numpy", "numpy"),
        ("import numpy.linalg as la", "numpy"),
        ("from numpy import array", "numpy"),
        ("import numpy, sympy", "sympy"),
        ("def f():\n    if 1:\n        from sympy.abc import x", "sympy"),
        ("import mpmath", "sympy"),
        ("import math, random", "std"),
        ("from collections import Counter", "std"),
        ("x = 'import numpy'", "bare"),
        ("# numpy\nimport numpyro", "std"),
        ("from .numpy import x", "bare"),
        ("import numpy\nx = (", "bare"),
        ("import numpy\0", "bare"),
        ("numpy = " + "(" * 500 + ")" * 500, "bare"),
        ("import numpy\n" + "#" * MAX_SCANNED, "bare"),
    ],
)
def test_lane_from_imports(code: str, lane: str) -> None:
    assert choose_lane(code, LANES) == lane


def test_lane_that_is_not_there_is_not_chosen() -> None:
    assert choose_lane("import sympy, numpy", ("bare", "numpy")) == "numpy"
    assert choose_lane("import sympy", ("bare",)) == "bare"


@given(st.text(max_size=200))
def test_lane_of_anything(code: str) -> None:
    assert choose_lane("numpy\n" + code, LANES) in LANES


def test_requests_that_cannot_be_run() -> None:
    assert check_request("print(1)", "") is None
    assert "code is" in str(check_request("x" * (MAX_CODE_BYTES + 1), ""))
    assert "code is" in str(check_request("\u00e9" * (MAX_CODE_BYTES // 2 + 1), ""))
    assert "stdin is not Unicode" in str(check_request("", "\udc80"))


def test_a_full_disk_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/var/state'"), named_when_full(Path("/var/state")):
        Path("/dev/full").write_text("x")


def test_the_most_output_is_what_a_manifest_may_ask_for() -> None:
    assert JudgeLimits(output_bytes=MAX_OUTPUT_BYTES)
    with pytest.raises(ValidationError, match="output_bytes"):
        JudgeLimits(output_bytes=MAX_OUTPUT_BYTES + 1)


@given(st.text(), st.text(), st.floats(0.1, 600), st.integers(1, 1000))
def test_task_survives_the_queue(code: str, stdin: str, wall: float, processes: int) -> None:
    limits = JudgeLimits(wall_seconds=wall, processes=processes)
    task = QueuedCall.build(id="7", reply_to="list", code=code, stdin=stdin, limits=limits, deadline=12.5)
    assert QueuedCall.decode(task.encode().encode()) == task


@given(st.text(), st.text(), st.none() | st.integers(-64, 255))
def test_result_survives_the_queue(stdout: str, stderr: str, exit_code: int | None) -> None:
    result = CallResult("error", stdout, stderr, exit_code, 0.0, 1.5)
    assert decode_result(encode_result("id", result).encode()) == ("id", result)


def test_both_halves_of_the_executor_agree() -> None:
    assert program.MEMORY_EXIT == MEMORY_EXIT
    assert set(program.WARM_UP) == set(LANE_PACKAGES)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_token(host: str) -> None:
    check_bind(host, token=None, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_open_address_needs_a_token_or_insistence(host: str) -> None:
    with pytest.raises(ValueError, match="RSTAR2_JUDGE_TOKEN"):
        check_bind(host, token=None, insecure=False)
    check_bind(host, token="t", insecure=False)
    check_bind(host, token=None, insecure=True)


def test_password_on_the_command_line_is_refused() -> None:
    with pytest.raises(ValueError, match="RSTAR2_REDIS_PASSWORD"):
        connect("redis://:hunter2@127.0.0.1:1/0")


def test_secret_from_environment_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSTAR2_X", raising=False)
    assert secret("RSTAR2_X") is None
    monkeypatch.setenv("RSTAR2_X", "one")
    assert secret("RSTAR2_X") == "one"
    (tmp_path / "file").write_text("two\n")
    monkeypatch.setenv("RSTAR2_X_FILE", str(tmp_path / "file"))
    assert secret("RSTAR2_X") == "two"


@pytest.mark.parametrize("arguments", [["--help"], ["api", "--help"], ["worker", "--help"]])
def test_help_names_the_secrets(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "RSTAR2_REDIS_PASSWORD" in capsys.readouterr().out


def test_bundle_gives_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTAR2_REDIS_PASSWORD", "hunter2")
    config = bundle_config(tmp_path, ["python"])
    process = config["process"]
    assert config["root"]["readonly"] and process["noNewPrivileges"]
    assert process["user"] == {"uid": 65534, "gid": 65534}
    assert all(not names for names in process["capabilities"].values())
    assert {"type": "network"} in config["linux"]["namespaces"]
    assert "hunter2" not in json.dumps(config)
    assert all(mount["source"] in ("proc", "tmpfs") for mount in config["mounts"])


async def test_results_stream_as_they_come() -> None:
    async def after(seconds: float, text: str) -> CallResult:
        await asyncio.sleep(seconds)
        return CallResult("ok", text)

    runs = [asyncio.ensure_future(after(0.05, "late")), asyncio.ensure_future(after(0, "early"))]
    lines = [json.loads(line) async for chunk in as_lines(runs) for line in chunk.splitlines()]
    assert [(line["index"], line["stdout"]) for line in lines] == [(1, "early"), (0, "late")]


def test_a_root_that_came_with_an_image_is_used_whatever_it_was_built_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "opt/executor/forkserver.so"
    monkeypatch.setenv("RSTAR2_SANDBOX_ROOT", str(tmp_path))
    with pytest.raises(SetupError, match="is no root of a sandbox"):
        prepare_root()
    library.parent.mkdir(parents=True)
    library.touch()
    assert (prepare_root(), prepare_library()) == (tmp_path, library)


def test_each_core_gets_a_sandbox_before_one_gets_two(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    settings = SandboxSettings(isolation="none", state=tmp_path, platform="", lanes=("bare",))
    supply = LocalSandboxProvider(settings, 2 * len(cores))
    made = [supply.make(str(place)) for place in range(2 * len(cores))]
    used = [sandbox.core for sandbox in made if isinstance(sandbox, LocalSandbox)]
    assert sorted(used[: len(cores)]) == sorted(used[len(cores) :]) == cores
    again = supply.make("0")  # in place of one that ended
    assert isinstance(again, LocalSandbox)
    assert again.core == used[0]
