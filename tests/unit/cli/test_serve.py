"""How `rstar2 serve` and `rstar2 chat` end when they cannot begin: in one clear line, before anything is started."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.cli.main import main
from rstar2_train.serving.stack import scratch
from rstar2_train.utils.supervisor import ChildFailed


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RSTAR2_SERVE_TOKEN", "RSTAR2_SERVE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What is told of a command that fails."""
    assert main(list(argv)) == 1
    told = capsys.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    return told.err


def test_no_such_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nobody: no such model" in fails(capsys, "serve", "nobody", "--state", str(tmp_path))


def test_port_in_use(capsys: pytest.CaptureFixture[str], model_folder: Path, taken: int) -> None:
    told = fails(capsys, "serve", str(model_folder), "--port", str(taken))
    assert f"cannot listen on 127.0.0.1:{taken}: Address already in use" in told


def test_an_open_address_without_a_token(capsys: pytest.CaptureFixture[str], model_folder: Path) -> None:
    told = fails(capsys, "serve", str(model_folder), "--host", "0.0.0.0", "--port", "0")
    assert "RSTAR2_SERVE_TOKEN" in told and "--insecure" in told


def test_a_token_file_that_is_empty(capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    assert f"{file} is empty" in fails(capsys, "serve", str(model_folder), "--token-file", str(file))


def test_more_context_than_the_model_has(capsys: pytest.CaptureFixture[str], model_folder: Path) -> None:
    assert "--context 99999" in fails(capsys, "serve", str(model_folder), "--context", "99999")


def test_a_chat_with_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as one:  # bound, and nobody listens
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
        assert f"no server at {url}: start one with `rstar2 serve MODEL`" in fails(capsys, "chat", "--url", url, "hi")


def test_a_chat_with_a_model_that_cannot_be_served_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "nobody: no such model" in fails(capsys, "chat", "--model", "nobody", "--state", str(tmp_path), "hi")


@pytest.mark.parametrize(("error", "stays"), [(ChildFailed("engine"), True), (OSError("port"), False)])
def test_the_logs_of_a_part_that_failed_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, stays: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(type(error)), scratch() as folder:
        raise error
    assert (folder.parent, folder.exists()) == (tmp_path, stays)
    with scratch() as folder:
        pass
    assert not folder.exists()


@pytest.mark.parametrize(
    "given", [["--endpoint", "http://e", "--accelerator", "none"], ["--judge", "http://j", "--executors", "2"]]
)
def test_what_only_a_part_started_here_takes(
    capsys: pytest.CaptureFixture[str], model_folder: Path, given: list[str]
) -> None:
    assert "started here" in fails(capsys, "serve", str(model_folder), *given)
