"""Errors of `rstar2 serve` and `rstar2 chat` before anything starts: one clear line."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.cli.main import main


@pytest.fixture
def used_port() -> Iterator[int]:
    """A port on which another socket listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RSTAR2_SERVE_TOKEN", "RSTAR2_SERVE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def error_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that fails and return its error message."""
    assert main(list(argv)) == 1
    output = capsys.readouterr()
    assert output.out == "" and "Traceback" not in output.err
    return output.err


def test_serve_unknown_model_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The message names the model."""
    assert "nobody: no such model" in error_of(capsys, "serve", "nobody", "--state", str(tmp_path))


def test_serve_port_in_use_fails(capsys: pytest.CaptureFixture[str], model_folder: Path, used_port: int) -> None:
    """The port is bound before any process starts."""
    error = error_of(capsys, "serve", str(model_folder), "--port", str(used_port))
    assert f"cannot listen on 127.0.0.1:{used_port}: Address already in use" in error


def test_serve_open_address_without_token_fails(capsys: pytest.CaptureFixture[str], model_folder: Path) -> None:
    """The message names the variable of the token, and --insecure."""
    error = error_of(capsys, "serve", str(model_folder), "--host", "0.0.0.0", "--port", "0")
    assert "RSTAR2_SERVE_TOKEN" in error and "--insecure" in error


def test_serve_empty_token_file_fails(capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path) -> None:
    """An empty token would accept every client."""
    file = tmp_path / "token"
    file.write_text("\n")
    assert f"{file} is empty" in error_of(capsys, "serve", str(model_folder), "--token-file", str(file))


def test_serve_context_above_the_models_fails(capsys: pytest.CaptureFixture[str], model_folder: Path) -> None:
    """The message names the option."""
    assert "--context 99999" in error_of(capsys, "serve", str(model_folder), "--context", "99999")


def test_chat_without_server_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the URL and the command that starts a server."""
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert f"no server at {url}: start one with `rstar2 serve MODEL`" in error_of(
            capsys, "chat", "--url", url, "hi"
        )


def test_chat_unknown_model_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The error of the server that `chat` starts is printed."""
    assert "nobody: no such model" in error_of(capsys, "chat", "--model", "nobody", "--state", str(tmp_path), "hi")


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        (["--endpoint", "http://e", "--accelerator", "none"], "--accelerator has no effect with --endpoint"),
        (["--judge", "http://j", "--executors", "2"], "--executors has no effect with --judge"),
    ],
)
def test_serve_option_of_a_replaced_part_fails(
    capsys: pytest.CaptureFixture[str], model_folder: Path, options: list[str], unused: str
) -> None:
    """An option of a part that runs already is an error, not ignored."""
    assert unused in error_of(capsys, "serve", str(model_folder), *options)
