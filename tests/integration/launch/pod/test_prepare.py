"""Data and model are created, downloaded or found, or the error names the field. The Hub is a small HTTP server."""

from __future__ import annotations

import hashlib
import http.server
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.launch.pod.__main__ import main
from tests.support.engine import random_model
from tests.support.model_fixtures import model_folder

__all__ = ["model_folder"]

COMMIT = hashlib.sha1(b"commit").hexdigest()


def model_files() -> dict[str, bytes]:
    """Return the files of a tiny model with its tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        return {file.name: file.read_bytes() for file in random_model(Path(name) / "tiny", seed=0).iterdir()}


MODEL = model_files()
WEIGHTS = MODEL["model.safetensors"]
DEMONSTRATION = b'{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n'
CONFIG = b'{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}'
FILES = {
    ("models", "acme/policy"): {
        **MODEL,
        "pytorch_model.bin": b"twice",
    },
    ("datasets", "acme/sums"): {"data/easy.jsonl": DEMONSTRATION, "data/huge.jsonl": b"x"},
    ("datasets", "acme/kit"): {
        "tools/kit/__init__.py": b'from kit import shop\n\n\ndef query(sql: str) -> str:\n    """Runs it."""\n',
        "tools/kit/shop.py": b"x = 1\n",
        "tools/other.py": b"x = 1\n",
    },
}


class Hub:
    """A server for the requests of a download."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.broken_downloads = 0
        """Number of next downloads of the weights that stop half-way."""
        self.unavailable = False
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._serve()

            def do_GET(self) -> None:
                self._serve()

            def _serve(self) -> None:
                hub.requests.append(f"{self.command} {self.path}")
                path = self.path.partition("?")[0].strip("/")
                if hub.unavailable:
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
                info = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
                return self._send(200, json.dumps(info).encode())

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
                if cut and hub.broken_downloads:
                    hub.broken_downloads -= 1
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


def read_hub_variables() -> None:
    """Let huggingface_hub read its variables, which it reads once per process, and open new connections."""
    importlib.reload(constants)
    close_session()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A Hub that this process and its children use in place of the public one."""
    with Hub() as hub:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("HF_ENDPOINT", hub.url)
            environment.setenv("HOME", str(tmp_path))
            environment.setenv("HF_HUB_DISABLE_XET", "1")
            environment.setenv("NO_PROXY", "*")
            read_hub_variables()
            yield hub
        read_hub_variables()


def job(**changes: object) -> AgenticRLJob:
    spec = {
        "model": {"source": "hf://acme/policy@v1", "assumeInstructionTuned": True},
        "accelerator": {"vendor": "None"},
        "trainer": {"gpusPerReplica": 0},
        "stages": [{"name": "sft", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums/data/easy.jsonl"}}],
    }
    return AgenticRLJob.model_validate({"metadata": {"name": "j", "uid": "u"}, "spec": spec | changes})


def prepare_arguments(folder: Path, source: AgenticRLJob, state: Path) -> list[str]:
    """Return the arguments of the prepare program for a job whose files are written to `folder`."""
    termination_log = folder / "termination-log"
    termination_log.touch()
    resolved, _ = resolved_sources(source, str(state))
    (folder / "job.json").write_text(resolved.model_dump_json(exclude_none=True))
    (folder / "source.json").write_text(source.model_dump_json(exclude_none=True))
    arguments = ["prepare", "--job", str(folder / "job.json"), "--state", str(state)]
    return [*arguments, "--termination-log", str(termination_log)]


def prepare(folder: Path, source: AgenticRLJob) -> tuple[int, str]:
    """Run the program in this process, which imports transformers once; return exit code and termination message."""
    code = main(prepare_arguments(folder, source, folder / "state"))
    return code, (folder / "termination-log").read_text()


def test_prepare_downloads_once(tmp_path: Path, hub: Hub) -> None:
    """A model without its duplicate weights, and one file of a data set."""
    assert prepare(tmp_path, job())[0] == ExitCode.DONE
    model, data = tmp_path / "state/models/acme--policy@v1", tmp_path / "state/datasets/acme--sums"
    assert (model / "model.safetensors").read_bytes() == WEIGHTS
    assert not (model / "pytorch_model.bin").exists()
    assert [file.name for file in (data / "data").iterdir()] == ["easy.jsonl"]
    hub.requests.clear()
    hub.unavailable = True
    assert prepare(tmp_path, job())[0] == ExitCode.DONE
    assert hub.requests == []


def test_prepare_downloads_the_package_of_a_tool(tmp_path: Path, hub: Hub) -> None:
    """The folder of a package in a data set, completely: a part that an earlier attempt left is no package."""
    source = job(tools=[{"name": "query", "source": "hf://datasets/acme/kit/tools/kit"}])
    tools = tmp_path / "state/datasets/acme--kit/tools"
    (tools / "kit").mkdir(parents=True)
    assert prepare(tmp_path, source)[0] == ExitCode.DONE
    assert sorted(file.name for file in (tools / "kit").iterdir()) == ["__init__.py", "shop.py"]
    assert [entry.name for entry in tools.iterdir()] == ["kit"]
    hub.unavailable = True
    assert prepare(tmp_path, source)[0] == ExitCode.DONE


def test_prepare_broken_download_is_retried(tmp_path: Path, hub: Hub) -> None:
    """An unavailable Hub is a retryable failure; a retry completes the download."""
    hub.unavailable = True
    code, message = prepare(tmp_path, job())
    assert code == ExitCode.RETRYABLE and "cannot download acme/policy" in message
    hub.unavailable, hub.broken_downloads = False, 1
    for _ in range(2):
        code, _ = prepare(tmp_path, job())
        assert code in (ExitCode.DONE, ExitCode.RETRYABLE)
    assert code == ExitCode.DONE
    assert (tmp_path / "state/models/acme--policy@v1/model.safetensors").read_bytes() == WEIGHTS


def test_prepare_missing_source_names_the_field(tmp_path: Path, hub: Hub) -> None:
    """One line per field, with the cause."""
    (tmp_path / "empty").mkdir()
    stages = [
        {"name": "a", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums/data/none.jsonl"}},
        {"name": "b", "type": "SFT", "sft": {"data": "pvc://claim/none.jsonl"}},
        {"name": "c", "type": "SFT", "sft": {"data": "hf://datasets/acme/unknown/a.jsonl"}},
        {"name": "d", "type": "SFT", "sft": {"data": "generated://tiny-smoke/none.jsonl"}},
        {"name": "e", "type": "SFT", "sft": {"data": "hf://datasets/acme/sums@v9/data/easy.jsonl"}},
    ]
    code, message = prepare(tmp_path, job(model={"source": str(tmp_path / "empty")}, stages=stages))
    assert code == ExitCode.CONFIGURATION
    lines = message.splitlines()
    for line, (field, cause) in zip(
        lines,
        [
            ("spec.model.source", "no config.json"),
            ("spec.stages[0].sft.data", "has no file data/none.jsonl"),
            ("spec.stages[1].sft.data", "no such file or folder (path: /pvc/claim/none.jsonl)"),
            ("spec.stages[2].sft.data", "the Hub has no dataset acme/unknown"),
            ("spec.stages[3].sft.data", "writes no 'none.jsonl'; it writes: "),
            ("spec.stages[4].sft.data", "has no revision 'v9'"),
        ],
        strict=True,
    ):
        assert line.startswith(f"{field}: ") and cause in line, line


def test_prepare_renders_demonstrations(tmp_path: Path, hub: Hub, model_folder: Path) -> None:
    """A row that the template of the model cannot render is refused before the first stage, as `validate` does."""
    data = tmp_path / "data.jsonl"
    stages = [{"name": "sft", "type": "SFT", "sft": {"data": str(data)}}]
    source = job(model={"source": str(model_folder), "assumeInstructionTuned": True}, stages=stages)
    data.write_bytes(DEMONSTRATION)
    assert prepare(tmp_path, source)[0] == ExitCode.DONE
    data.write_bytes(DEMONSTRATION + DEMONSTRATION.replace(b'"2"', b'"2<|im_end|>3"'))
    code, message = prepare(tmp_path, source)
    assert code == ExitCode.CONFIGURATION
    assert message.startswith(f"spec.stages[0].sft.data: {data}:2: messages[1]: ") and "ends a turn" in message


def test_prepare_unwritable_storage_names_the_user(tmp_path: Path, hub: Hub) -> None:
    """Not even root can create a folder there. The process has the exit code of the program."""
    unwritable = Path("/sys/kernel/rstar2-state")
    command = [sys.executable, "-m", "rstar2_train.launch.pod", *prepare_arguments(tmp_path, job(), unwritable)]
    assert subprocess.run(command, timeout=600, check=False).returncode == ExitCode.CONFIGURATION
    message = (tmp_path / "termination-log").read_text()
    assert str(unwritable) in message and f"user {os.getuid()}, group" in message
    assert hub.requests == []
