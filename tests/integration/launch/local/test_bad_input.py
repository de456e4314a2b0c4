"""Errors of a new user: one clear message, a non-zero exit code, no incomplete files, no remaining processes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.cli.main import main
from tests.support.full_disk import small_disk

ROOT = Path(__file__).parents[4]
SMOKE = ROOT / "examples" / "smoke.yaml"


@pytest.fixture
def rstar2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run the command in this process, which imports torch once; return its exit code and output."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # a run adds the folder of its tools

    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        output = capsys.readouterr()
        return code, output.out + output.err

    return run


def process(module: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run a module as a process; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | variables,
    )
    return done.returncode, done.stdout + done.stderr


def changed(tmp_path: Path, change) -> Path:
    """Return the path of the smoke manifest after `change` of its spec."""
    data = yaml.safe_load(SMOKE.read_text())
    change(data["spec"])
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def assert_rejected(code: int, output: str, *messages: str) -> None:
    assert code not in (0, 75), output
    assert "Traceback" not in output
    for message in messages:
        assert message in output


def test_missing_manifest_is_named(tmp_path: Path, rstar2) -> None:
    """`run` and `validate` print the path."""
    for command in ("run", "validate"):
        code, output = rstar2(command, str(tmp_path / "nope.yaml"))
        assert_rejected(code, output, "nope.yaml: no such file")


def test_run_invalid_yaml_names_the_line(tmp_path: Path) -> None:
    """No state folder is created. The process has the exit code of the command."""
    (tmp_path / "job.yaml").write_text("spec: [")
    code, output = process("rstar2_train.cli", "run", str(tmp_path / "job.yaml"), "--state", str(tmp_path / "s"))
    assert_rejected(code, output, "not valid YAML", "line 1")
    assert not (tmp_path / "s").exists()


def test_run_reports_every_invalid_field(tmp_path: Path, rstar2) -> None:
    """All errors of the manifest are in one output, with the value and the bound."""

    def wrong(spec: dict) -> None:
        spec["grpo"]["keepPerPrompt"] = 64
        spec["grpo"]["promptPerStep"] = 3
        spec["executor"]["replicas"] = 0
        spec["stages"][1]["grpo"]["steps"] = -1

    path = changed(tmp_path, wrong)
    for command in (["validate", str(path)], ["run", str(path), "--state", str(tmp_path / "s")]):
        code, output = rstar2(*command)
        assert_rejected(
            code,
            output,
            "keepPerPrompt",
            "at most rolloutsPerPrompt, which is 8",
            "did you mean 'promptsPerStep'?",
            "spec.executor.replicas is 0",
            "spec.stages[1].grpo.steps is -1",
        )
    assert not (tmp_path / "s").exists()


def test_run_missing_data_names_field_and_file(tmp_path: Path, rstar2) -> None:
    """Each field whose file is missing."""

    def wrong(spec: dict) -> None:
        spec["stages"][0]["sft"]["data"] = "data/nothing.jsonl"
        spec["stages"][1]["grpo"]["data"] = "pvc://claim/problems.jsonl"

    code, output = rstar2("run", str(changed(tmp_path, wrong)), "--state", str(tmp_path / "s"))
    assert_rejected(code, output, "spec.stages[0].sft.data", "nothing.jsonl", "spec.stages[1].grpo.data", "local copy")


@pytest.mark.parametrize(
    ("tool", "advice"), [("runsc", "make setup"), ("redis-server", "apt-get install redis-server")]
)
def test_run_missing_tool_names_the_installation(
    tmp_path: Path, rstar2, monkeypatch: pytest.MonkeyPatch, tool: str, advice: str
) -> None:
    """The message has the command that installs the tool."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("runsc", "redis-server", "python3"):
        executable = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        if name != tool and executable:
            (folder / name).symlink_to(executable)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("RSTAR2_RUNSC", str(folder / "runsc"))
    code, output = rstar2("run", str(SMOKE), "--state", str(tmp_path / "s"))
    assert_rejected(code, output, tool, advice)


def test_run_locked_job_is_rejected(tmp_path: Path, rstar2) -> None:
    """The message has the pid of the other run."""
    import fcntl

    folder = tmp_path / "smoke"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output = rstar2("run", str(SMOKE), "--state", str(tmp_path))
    assert_rejected(code, output, "already running", "4711")


def test_run_full_disk_fails_before_any_start(tmp_path: Path, rstar2) -> None:
    """Nothing is written."""
    with small_disk(tmp_path / "small", mebibytes=32) as small:
        code, output = rstar2("run", str(SMOKE), "--state", str(small))
        assert_rejected(code, output, "MiB are free")
        assert not (small / "smoke" / "job.json").exists()


def test_judge_port_in_use_is_named(tmp_path: Path) -> None:
    """The API of the judge prints the port."""
    import socket

    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = str(used.getsockname()[1])
        arguments = ("api", "--redis", "redis://127.0.0.1:1/0", "--port", port)
        code, output = process("rstar2_train.judge", *arguments, RSTAR2_JUDGE_TOKEN="x" * 32)
    assert_rejected(code, output, port, "in use")


def test_report_of_a_job_without_outcome(tmp_path: Path, rstar2) -> None:
    """A job that was killed in its first stage has attempts but no results."""
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


def test_report_and_track_unknown_job_fail(tmp_path: Path, rstar2) -> None:
    """The message has the path of the missing folder."""
    for command in ("report", "track"):
        code, output = rstar2(command, "nope", "--state", str(tmp_path))
        assert_rejected(code, output, "nope")
