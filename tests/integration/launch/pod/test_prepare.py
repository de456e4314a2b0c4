"""What a job's storage must hold is made, fetched or found, or its field is named. The hub is a small HTTP server."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources

COMMIT = hashlib.sha1(b"commit").hexdigest()
WEIGHTS = os.urandom(300_000)
DEMONSTRATION = b'{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n'
FILES = {
    ("models", "acme/policy"): {"config.json": b"{}", "model.safetensors": WEIGHTS, "pytorch_model.bin": b"twice"},
    ("datasets", "acme/sums"): {"data/easy.jsonl": DEMONSTRATION, "data/huge.jsonl": b"x"},
}


class Hub:
    """The requests that fetching a repository makes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cut = 0
        """How many of the next downloads of the weights break off half-way."""
        self.away = False
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._serve()

            def do_GET(self) -> None:
                self._serve()

            def _serve(self) -> None:
                hub.asked.append(f"{self.command} {self.path}")
                path = self.path.partition("?")[0].strip("/")
                if hub.away:
                    return self._send(503, b"not now")
                if path.startswith("api/"):
                    return self._api(path.split("/")[1], "/".join(path.split("/")[2:4]), path.split("/")[4:])
                kind = "datasets" if path.startswith("datasets/") else "models"
                parts = path.removeprefix("datasets/").split("/")
                data = FILES.get((kind, "/".join(parts[:2])), {}).get("/".join(parts[4:]))
                if data is None:
                    return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
                return self._file(data)

            def _api(self, kind: str, repository: str, rest: list[str]) -> None:
                files = FILES.get((kind, repository))
                if files is None:
                    return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
                if rest[:1] == ["revision"] and rest[1] not in ("main", "v1", COMMIT):
                    return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                if rest[:1] == ["tree"]:
                    tree = [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for name, data in files.items()
                    ]
                    return self._send(200, json.dumps(tree).encode())
                told = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                return self._send(200, json.dumps(told).encode())

            def _file(self, data: bytes) -> None:
                start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
                headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
                headers |= {"Accept-Ranges": "bytes"}
                if start:
                    headers |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
                self._send(206 if start else 200, data[start:], headers, cut=data is WEIGHTS)

            def _send(
                self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False
            ) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                if cut and hub.cut:
                    hub.cut -= 1
                    body = body[: len(body) // 2]
                    self.close_connection = True
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


def job(**changes: object) -> AgenticRLJob:
    spec = {
        "model": {"source": "hf://acme/policy@v1", "assumeInstructionTuned": True},
        "accelerator": {"vendor": "None"},
        "trainer": {"gpusPerReplica": 0},
        "stages": [{"name": "sft", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums/data/easy.jsonl"}}],
    }
    return AgenticRLJob.model_validate({"metadata": {"name": "j", "uid": "u"}, "spec": spec | changes})


def prepare(folder: Path, wanted: AgenticRLJob, hub: Hub, *, state: Path | None = None) -> tuple[int, str]:
    """Exit code and last words of the program."""
    state, words = state or folder / "state", folder / "words"
    words.touch()
    found, _ = resolved_sources(wanted, str(state))
    (folder / "job.json").write_text(found.model_dump_json(exclude_none=True))
    (folder / "source.json").write_text(wanted.model_dump_json(exclude_none=True))
    command = [sys.executable, "-m", "rstar2_train.launch.pod", "prepare", "--job", str(folder / "job.json")]
    command += ["--state", str(state), "--termination-log", str(words)]
    env = os.environ | {"HF_ENDPOINT": hub.url, "HOME": str(folder), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=env)
    print(done.stdout, done.stderr)
    return done.returncode, words.read_text()


def test_a_model_and_a_file_of_a_data_set_are_fetched_once(tmp_path: Path, hub: Hub) -> None:
    assert prepare(tmp_path, job(), hub)[0] == ExitCode.DONE
    model, data = tmp_path / "state/models/acme--policy@v1", tmp_path / "state/datasets/acme--sums"
    assert (model / "model.safetensors").read_bytes() == WEIGHTS
    assert not (model / "pytorch_model.bin").exists()
    assert [file.name for file in (data / "data").iterdir()] == ["easy.jsonl"]
    hub.asked.clear()
    hub.away = True
    assert prepare(tmp_path, job(), hub)[0] == ExitCode.DONE
    assert hub.asked == []


def test_a_fetch_that_broke_off_is_taken_up_again(tmp_path: Path, hub: Hub) -> None:
    hub.away = True
    code, words = prepare(tmp_path, job(), hub)
    assert code == ExitCode.RETRYABLE and "acme/policy could not be fetched" in words
    hub.away, hub.cut = False, 1
    for _ in range(2):
        code, _ = prepare(tmp_path, job(), hub)
        assert code in (ExitCode.DONE, ExitCode.RETRYABLE)
    assert code == ExitCode.DONE
    assert (tmp_path / "state/models/acme--policy@v1/model.safetensors").read_bytes() == WEIGHTS


def test_what_cannot_be_had_names_its_field(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "empty").mkdir()
    stages = [
        {"name": "a", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums/data/none.jsonl"}},
        {"name": "b", "type": "SFT", "sft": {"data": "pvc://claim/none.jsonl"}},
        {"name": "c", "type": "SFT", "sft": {"data": "hf://datasets/nobody/nothing/a.jsonl"}},
        {"name": "d", "type": "SFT", "sft": {"data": "generated://tiny-smoke/none.jsonl"}},
        {"name": "e", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums@v9/data/easy.jsonl"}},
    ]
    code, words = prepare(tmp_path, job(model={"source": str(tmp_path / "empty")}, stages=stages), hub)
    assert code == ExitCode.CONFIGURATION
    lines = words.splitlines()
    for line, (field, why) in zip(
        lines,
        [
            ("spec.model.source", "no config.json"),
            ("spec.stages[0].sft.data", "has no file data/none.jsonl"),
            ("spec.stages[1].sft.data", "no such file or folder (looked at /pvc/claim/none.jsonl)"),
            ("spec.stages[2].sft.data", "the hub knows no dataset nobody/nothing"),
            ("spec.stages[3].sft.data", "makes no 'none.jsonl'; it makes: "),
            ("spec.stages[4].sft.data", "has no revision 'v9'"),
        ],
        strict=True,
    ):
        assert line.startswith(f"{field}: ") and why in line, line


def test_storage_that_cannot_be_written_is_said_to_be_that(tmp_path: Path, hub: Hub) -> None:
    nowhere = Path("/sys/kernel/rstar2-state")  # not even root can make a folder there
    code, words = prepare(tmp_path, job(), hub, state=nowhere)
    assert code == ExitCode.CONFIGURATION
    assert str(nowhere) in words and f"must be writable by user {os.getuid()}" in words
    assert hub.asked == []
