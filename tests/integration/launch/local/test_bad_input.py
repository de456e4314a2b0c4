"""What a new user gets wrong: one clear message each, exit code not 0, nothing half-written, nothing left running."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from tests.support.full_disk import small_disk

ROOT = Path(__file__).parents[4]
SMOKE = ROOT / "examples" / "smoke.yaml"


def rstar2(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    command = [sys.executable, "-m", "rstar2_train.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=os.environ | (env or {})
    )
    return done.returncode, done.stdout + done.stderr


def changed(tmp_path: Path, change) -> Path:
    """The smoke manifest with one thing wrong."""
    data = yaml.safe_load(SMOKE.read_text())
    change(data["spec"])
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def assert_refused(code: int, output: str, *words: str) -> None:
    assert code not in (0, 75), output
    assert "Traceback" not in output
    for word in words:
        assert word in output


def test_no_such_file(tmp_path: Path) -> None:
    for command in ("run", "validate"):
        code, output = rstar2(command, str(tmp_path / "nope.yaml"))
        assert_refused(code, output, "nope.yaml: no such file")


def test_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("spec: [")
    code, output = rstar2("run", str(tmp_path / "job.yaml"), "--state", str(tmp_path / "s"))
    assert_refused(code, output, "not valid YAML", "line 1")
    assert not (tmp_path / "s").exists()


def test_every_wrong_field_at_once(tmp_path: Path) -> None:
    def wrong(spec: dict) -> None:
        spec["grpo"]["keepPerPrompt"] = 64
        spec["grpo"]["promptPerStep"] = 3
        spec["executor"]["replicas"] = 0
        spec["stages"][1]["grpo"]["steps"] = -1

    path = changed(tmp_path, wrong)
    for command in (["validate", str(path)], ["run", str(path), "--state", str(tmp_path / "s")]):
        code, output = rstar2(*command)
        assert_refused(
            code,
            output,
            "keepPerPrompt",
            "at most rolloutsPerPrompt, which is 8",
            "did you mean 'promptsPerStep'?",
            "spec.executor.replicas is 0",
            "spec.stages[1].grpo.steps is -1",
        )
    assert not (tmp_path / "s").exists()


def test_missing_data_names_the_field_and_the_file(tmp_path: Path) -> None:
    def wrong(spec: dict) -> None:
        spec["stages"][0]["sft"]["data"] = "data/nothing.jsonl"
        spec["stages"][1]["grpo"]["data"] = "pvc://claim/problems.jsonl"

    code, output = rstar2("run", str(changed(tmp_path, wrong)), "--state", str(tmp_path / "s"))
    assert_refused(code, output, "spec.stages[0].sft.data", "nothing.jsonl", "spec.stages[1].grpo.data", "local copy")


@pytest.mark.parametrize(
    ("tool", "advice"), [("runsc", "make setup"), ("redis-server", "apt-get install redis-server")]
)
def test_a_missing_tool_says_how_to_get_it(tmp_path: Path, tool: str, advice: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("runsc", "redis-server", "python3"):
        found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if name != tool and found:
            (folder / name).symlink_to(found)
    env = os.environ | {"PATH": str(folder), "RSTAR2_RUNSC": str(folder / "runsc")}
    done = subprocess.run(
        [sys.executable, "-m", "rstar2_train.cli", "run", str(SMOKE), "--state", str(tmp_path / "s")],
        capture_output=True, text=True, timeout=120, check=False, env=env,
    )  # fmt: skip
    assert_refused(done.returncode, done.stdout + done.stderr, tool, advice)


def test_the_same_job_twice_at_once(tmp_path: Path) -> None:
    import fcntl

    folder = tmp_path / "smoke"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = rstar2("run", str(SMOKE), "--state", str(tmp_path))
    assert_refused(code, output, "already running", "4711")


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", mebibytes=32) as small:
        code, output = rstar2("run", str(SMOKE), "--state", str(small))
        assert_refused(code, output, "MiB are free")
        assert not (small / "smoke" / "job.json").exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "rstar2_train.judge",
            "api",
            "--redis",
            "redis://127.0.0.1:1/0",
            "--port",
            port,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"RSTAR2_JUDGE_TOKEN": "x" * 32},
        )
    assert_refused(done.returncode, done.stdout + done.stderr, port, "in use")


def test_report_of_a_job_that_was_killed_in_its_first_stage(tmp_path: Path) -> None:
    state = JobState(tmp_path / "smoke")
    job, _ = check(read_manifest(SMOKE))
    assert job is not None
    write_model(state.job_file, job)
    write_model(state.stage("sft").attempt_file, AttemptRecord(attempt=1, uid="u"))
    code, output = rstar2("report", "smoke", "--state", str(tmp_path), "--json")
    assert code == 0
    rows = json.loads(output)["stages"]
    assert [row["attempts"] for row in rows] == [1, 0, 0, 0, 0, 0]
    assert all(row["pass_at_1"] is None and row["outcome"] is None for row in rows)


def test_report_and_track_of_a_job_that_never_ran(tmp_path: Path) -> None:
    for command in ("report", "track"):
        code, output = rstar2(command, "nope", "--state", str(tmp_path))
        assert_refused(code, output, "nope")
