"""Bearer tokens: their source, the check of requests, and the addresses that require one."""

from pathlib import Path
from typing import Any

import pytest

from rstar2_train.utils.auth import BearerAuth, check_bind, read_secret, secret_env

RIGHT = (b"authorization", b"Bearer t0ken")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_check_bind_loopback_needs_no_token(host: str) -> None:
    """Other machines cannot reach a loopback address."""
    check_bind(host, token=None, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_check_bind_other_addresses_need_a_token(host: str) -> None:
    """The error names the variable; a token or --insecure allows the address."""
    with pytest.raises(ValueError, match="RSTAR2_JUDGE_TOKEN"):
        check_bind(host, token=None, insecure=False)
    check_bind(host, token="t", insecure=False)
    check_bind(host, token=None, insecure=True)


def test_read_secret_file_has_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME_FILE has precedence over NAME; without both there is no secret. A missing file is an error."""
    monkeypatch.delenv("RSTAR2_X", raising=False)
    assert read_secret("RSTAR2_X") is None
    monkeypatch.setenv("RSTAR2_X", "value")
    assert read_secret("RSTAR2_X") == "value"
    (tmp_path / "file").write_text("from-file\n")
    monkeypatch.setenv("RSTAR2_X_FILE", str(tmp_path / "file"))
    assert read_secret("RSTAR2_X") == "from-file"
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError, match="RSTAR2_X_FILE names this file"):
        read_secret("RSTAR2_X")


def test_secret_env_overrides_an_inherited_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process gets the secret of its parent, not the one in the user's environment."""
    monkeypatch.setenv("RSTAR2_X_FILE", str(tmp_path / "missing"))
    for name, value in secret_env("RSTAR2_X", "generated").items():
        monkeypatch.setenv(name, value)
    assert read_secret("RSTAR2_X") == "generated"


async def respond(kind: str, path: str, headers: list[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """Send a request through the middleware; return the messages of the response."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("the body was read before the check")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    auth = BearerAuth(app, token="t0ken", is_open=lambda path: path == "/health", body={"error": "no"})
    await auth({"type": kind, "path": path, "headers": headers}, receive, send)
    return messages


@pytest.mark.parametrize(
    ("kind", "path", "headers"),
    [
        ("http", "/health", []),
        ("http", "/run", [RIGHT]),
        ("http", "/run", [(b"authorization", b"bearer t0ken")]),
        ("lifespan", "", []),
    ],
)
async def test_bearer_auth_passes(kind: str, path: str, headers: list[tuple[bytes, bytes]]) -> None:
    """Open paths, valid tokens and lifespan events reach the application."""
    assert await respond(kind, path, headers) == [{"type": "passed"}]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"t0ken")],
        [(b"authorization", b"Basic t0ken")],
        [RIGHT, (b"authorization", b"Bearer other")],
        [RIGHT, RIGHT],
    ],
)
async def test_bearer_auth_rejects(headers: list[tuple[bytes, bytes]]) -> None:
    """A missing, wrong or repeated header gets 401 and the body."""
    start, body = await respond("http", "/run", headers)
    assert start["status"] == 401 and (b"www-authenticate", b"Bearer") in start["headers"]
    assert body["body"] == b'{"error": "no"}'


async def test_bearer_auth_closes_websockets() -> None:
    """No server here uses WebSockets."""
    assert await respond("websocket", "/run", [RIGHT]) == [{"type": "websocket.close", "code": 1008}]
