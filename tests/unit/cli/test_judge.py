"""Errors of `rstar2 judge` before anything starts: one line, which names the option."""

import io
import os

import pytest

from rstar2_train.cli import judge
from rstar2_train.cli.main import main


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token, a program on standard input, a copy of PATH (the command extends it), and little patience."""
    for name in ("RSTAR2_JUDGE_TOKEN", "RSTAR2_JUDGE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO("1"))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setattr(judge, "PATIENCE_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no-such-file.py"], "no-such-file.py"),
        (["run", "-", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["serve", "--host", "0.0.0.0"], "run code on it"),
        (["run", "-", "--seconds", "601"], "--seconds 601.0: input should be less than or equal to 600"),
        (["run", "-", "--memory-mib", "1"], "--memory-mib 1: input should be greater than or equal to 32"),
    ],
)
def test_invalid_arguments_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """The command fails with one line, which names the option or the address and its valid values."""
    assert main(["judge", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == "" and message in output.err and output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", "99999"], "argument --port: '99999' is not a port between 0 and 65535"),
        (["serve", "--executors", "-1"], "argument --executors: '-1' is not an integer of at least 1"),
        (["run", "-", "--seconds", "-1"], "argument --seconds: -1 is not a number of seconds above 0"),
    ],
)
def test_invalid_values_name_the_option(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """The parser rejects the value before anything else is read."""
    with pytest.raises(SystemExit) as exit:
        main(["judge", *arguments])
    assert exit.value.code == 2 and message in capsys.readouterr().err
