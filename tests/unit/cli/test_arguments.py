"""Wrong arguments of `rstar2`: the exit code is not 0, and the message has the remedy."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2_train.cli import kubectl_plugin
from rstar2_train.cli.main import main
from scripts.setup import ROOT
from tests.support.full_disk import fill, small_disk

TINY = str(ROOT / "examples" / "tiny.yaml")
ROWS = str(ROOT / "examples" / "environment" / "rows.jsonl")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["doctor", "--wrong", "x"], "unknown arguments: --wrong x. `rstar2 doctor --help` lists its options"),
        (["validate", "/dev/zero"], "/dev/zero: has more than 4,000,000 characters; pass the path"),
        (["view", "tiny", "--port", "99999"], "'99999' is not a port between 0 and 65535"),
        (["plan", TINY, "--mean-tokens", "-1"], "-1 is not a number above 0"),
        (["plan", TINY, "--gpus", "0"], "'0' is not an integer of at least 1"),
        (["plan", TINY, "--save", "here.json"], "--save needs --measure STATE"),
        (["run", TINY, "--state", "/dev/null"], "/dev/null/tiny: Not a directory. Pass a folder that you may write"),
        (["report", TINY], "Pass its name, tiny, in place of the manifest"),
        (
            ["data", "decontaminate", ROWS, "--against", str(ROOT / "docs"), "--out", "o"],
            "docs: is a folder; pass a file",
        ),
        (
            ["data", "decontaminate", ROWS, "--against", ROWS, "--out", TINY],
            "and with --out a folder that you may write",
        ),
        (
            ["data", "decontaminate", ROWS, "--against", ROWS, "--out", ""],
            "--out: '' is not the path of a file or folder",
        ),
        (["plan", TINY, "--measure", "x", "--save", "-"], "--save: '-' is not the path of a file or folder"),
        (["run", "~no-user/x.yaml"], "~no-user/x.yaml: no such user on this machine; write the whole path"),
        (["doctor", "--region", "eu"], "need --bucket s3://BUCKET/PREFIX"),
        (["doctor", "--cluster", "--bucket", "s3://a/b"], "not allowed with argument --cluster"),
        (["init", "--template", "maths", TINY], "Name a new or empty folder"),
        (["judge", "run", "missing.py"], "missing.py: No such file or directory. Pass a file, or - for standard input"),
        (["chat", "--url", "ftp://x", "hi"], "ftp://x is no URL of a server, such as http://127.0.0.1:8000"),
        (["simulate", "/dev/null"], "`rstar2 simulate --help` has an example"),
        (["plan", TINY, "--mean-tokens", "many"], "many is not a number above 0"),
        (["verify", "--known", "1", "--answer", "1", "--sample", "2"], "not options of both"),
        (["verify", "--known", "", "--answer", ""], "pass --known, which may not be empty"),
        (["env", "check", TINY, "--model", "m"], "--model needs --endpoint URL"),
        (["data", "inspect", ROWS, "--row", "2"], "--row needs --model FOLDER"),
        (["validate", "x" * 300], "File name too long. Pass another path"),
        (["report", "x" * 300, "--state", "/"], "File name too long. Pass another path"),
        (["report", "tiny", "--stat", "x"], "unknown arguments: --stat x"),
        (["simulate", "no.yaml"], "rstar2 simulate: no.yaml: No such file or directory\n"),
        (["plan", TINY, "--model", "."], "config.json cannot be used: No such file or directory: download"),
        (["track", "tiny.yaml"], "pass the name of the job (metadata.name) in place of its manifest"),
    ],
)
def test_wrong_arguments_have_a_remedy(arguments: list[str], remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse exits, and the commands return a code."""
    try:
        code = main(arguments)
    except SystemExit as error:
        assert isinstance(error.code, int)
        code = error.code
    assert code in (1, 2) and remedy in capsys.readouterr().err
    assert not Path("here.json").exists()


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    ("program", "arguments", "name"),
    [
        (main, ["verify", "--known", "1", "--answer", "1"], "rstar2 verify"),
        (kubectl_plugin.main, ["completion", "bash"], "kubectl rstar2"),
    ],
)
def test_full_output_is_one_message(
    program: Callable[[list[str]], int],
    arguments: list[str],
    name: str,
    unbuffered: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A full disk behind standard output ends the command without a traceback, also with PYTHONUNBUFFERED."""
    with Path("/dev/full").open("wb", buffering=0 if unbuffered else -1) as file:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, write_through=unbuffered))
        assert program(arguments) == 1
    assert capsys.readouterr().err == f"{name}: standard output: no space left on the device. Pass another file.\n"


@pytest.mark.parametrize(
    ("program", "arguments", "name"),
    [
        (main, ["--help"], "rstar2 --help"),
        (main, ["plan", "--help"], "rstar2 plan"),
        (kubectl_plugin.main, ["--help"], "kubectl rstar2"),
    ],
)
def test_full_output_of_help_is_one_message(
    program: Callable[[list[str]], int],
    arguments: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """argparse ends the process itself after --help."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert program(arguments) == 1
    assert capsys.readouterr().err == f"{name}: standard output: no space left on the device. Pass another file.\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("program", "name"), [("main", "rstar2 --help"), ("kubectl_plugin", "kubectl rstar2")])
def test_full_output_of_a_process_is_one_message(program: str, name: str, unbuffered: str) -> None:
    """argparse ignores the error of a write, so the text must still be in a buffer."""
    code = f"import sys; from rstar2_train.cli import {program}; sys.exit({program}.main())"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode == 1
    assert done.stderr == f"{name}: standard output: no space left on the device. Pass another file.\n"


def test_output_without_a_reader_ends_without_a_message() -> None:
    """As `kubectl rstar2 completion bash | true` does."""
    code = "import sys; from rstar2_train.cli import kubectl_plugin; sys.exit(kubectl_plugin.main())"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run([sys.executable, "-c", code, "--help"], stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_deleted_working_folder_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that needs the working folder names the cause, not a path of its own."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "rstar2 doctor: the working folder was deleted. Change to an existing folder.\n"
    assert main(["validate", TINY]) == 0


@pytest.mark.parametrize("template", ["maths", "sql"])
def test_init_full_disk_leaves_no_files(template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command can be repeated in the same folder, also if SQLite meets the full disk."""
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        filler = fill(disk)
        os.truncate(filler, filler.stat().st_size - 12 * 1024)
        assert main(["init", "--template", template, str(disk / "new")]) == 1
        assert f"No space left on the disk of {disk / 'new'}" in capsys.readouterr().err
        filler.unlink()
        assert main(["init", "--template", template, str(disk / "new")]) == 0


def test_data_full_disk_names_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error of a write has no path."""
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "Add one and one.", "answer": "2"}\n')
    with small_disk(tmp_path / "disk", mebibytes=1) as disk:
        fill(disk)
        assert main(["data", "decontaminate", ROWS, "--against", str(other), "--out", str(disk / "o")]) == 1
    assert f"No space left on the disk of {disk / 'o'}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["report"], ["track"], ["view"], ["verify", "--problem", "p", "--job"]])
def test_job_that_never_ran_is_one_message(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder exists after `rstar2 env check`, or after a run whose checks failed."""
    (tmp_path / "tiny" / "generated").mkdir(parents=True)
    assert main([*command, "tiny", "--state", str(tmp_path)]) == 1
    assert f"{tmp_path}/tiny: no such job. Run it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "file", "message"),
    [
        (["verify", "--problem", "p", "--job"], "job.json", "job.json is damaged, or of another version"),
        (["verify", "--problem", "p", "--job"], "job.json/file", "job.json: Is a directory"),
        (["analyse"], "job.json", "job.json is damaged, or of another version"),
        (["serve"], "job.json", "job.json is damaged, or of another version"),
    ],
)
def test_damaged_job_file_is_one_message(
    command: list[str], file: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A power failure may leave half a file, in the state of any command."""
    path = tmp_path / "tiny" / file
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (tmp_path / "tiny" / "progress.json").touch()
    assert main([*command, "tiny", "--state", str(tmp_path)]) == 1
    printed = capsys.readouterr().err.strip()
    assert message in printed and "Restore the file from a copy of the state" in printed
    assert printed.startswith(f"rstar2 {command[0]}: ") and "\n" not in printed


def test_track_without_metrics_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job file is written before the first event."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "job.json").touch()
    assert main(["track", "tiny", "--state", str(tmp_path)]) == 1
    assert "the job has no metrics yet" in capsys.readouterr().err
