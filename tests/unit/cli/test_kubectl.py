"""`kubectl rstar2` with a kubectl that fails, or prints other things than the API server's JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.cli import kubectl_plugin

COMMANDS = ["status", "status demo", "events demo", "checkpoints demo", "top demo", "plan demo", "view demo"]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Make a program the only one on the PATH, with the name kubectl."""
    program = folder / "kubectl"
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo warning: new version; echo '{}'", "kubectl get printed no JSON object: 'warning: new version'"),
        ("echo '<html>502 Bad Gateway</html>'", "kubectl get printed no JSON object: '<html>502 Bad Gateway</html>'"),
        ("echo null", "kubectl get printed no JSON object: 'null'"),
        ("true", "kubectl get printed no JSON object: ''"),
        ("printf '\\377'", "kubectl get printed no JSON object: "),
        ("echo Unauthorized >&2; exit 1", "Unauthorized"),
        ("kill -9 $$", "kubectl exited with code -9"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_kubectl_without_json_is_one_message(
    command: str,
    script: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrapper or a proxy prints it."""
    install(tmp_path, monkeypatch, f"#!/bin/sh\n{script}\n".encode())
    assert kubectl_plugin.main(command.split()) == 1
    printed = capsys.readouterr()
    assert not printed.out and printed.err.startswith("kubectl rstar2: ") and message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("command", [*COMMANDS, "logs demo", "suspend demo"])
def test_kubectl_that_cannot_run_is_one_message(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program of another processor, for example, or none."""
    install(tmp_path, monkeypatch, b"\x7fELF")
    assert kubectl_plugin.main(command.split()) == 1
    assert "kubectl cannot be run: Exec format error. Check the kubectl on the PATH" in capsys.readouterr().err
    (tmp_path / "kubectl").unlink()
    assert kubectl_plugin.main(command.split()) == 1
    assert "kubectl is not on the PATH. Install it" in capsys.readouterr().err


def test_kubectl_prints_utf8_in_every_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the Go program does; Python would decode it by the locale."""
    job = '{"items": [{"metadata": {"name": "j", "namespace": "d"}, "spec": {}, "status": {"message": "caf\xe9"}}]}'
    install(tmp_path, monkeypatch, f"#!/bin/sh\necho '{job}'\n".encode())
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")
    assert kubectl_plugin.main(["status", "-o", "json"]) == 0
    assert "caf\\u00e9" in capsys.readouterr().out
