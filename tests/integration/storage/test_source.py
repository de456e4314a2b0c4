"""Sources in buckets: downloaded, verified, found again without the bucket, or refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.storage import StorageSpec
from rstar2_train.cli.main import main
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import resolve
from rstar2_train.inference.bucket_cache import fetch_model
from rstar2_train.storage.job_state import BucketState
from rstar2_train.storage.source import find_objects
from rstar2_train.storage.store import StorageRejected
from tests.integration.storage.conftest import opened
from tests.support.engine import random_model
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server

MIB = 2**20
ROW = b'{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n'


@pytest.fixture
def model(server: S3Server, bucket: str) -> dict[str, bytes]:
    """Upload a prefix with objects of some blocks, of one and of none; return name -> content."""
    files = {"config.json": b'{"model_type": "qwen3"}', "sub/weights.bin": os.urandom(17 * MIB), "empty": b""}
    write(server, bucket, {f"models/base/{name}": body for name, body in files.items()})
    return files


def write(server: S3Server, bucket: str, files: dict[str, bytes]) -> None:
    store = opened(server.url, bucket, prefix="")
    for name, body in files.items():
        store.put_if_absent(name, body)


def fetched(url: str, bucket: str, key: str, state: Path) -> Path:
    return resolve(
        f"s3://{bucket}/{key}", base_dir=state, state_dir=state, seed=0, storage=StorageSpec(endpoint_url=url)
    )


def content(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_source_prefix_is_downloaded_once(proxy: S3Proxy, bucket: str, model: dict[str, bytes], tmp_path: Path) -> None:
    """A prefix becomes a folder. The second start verifies the copy without a request."""
    folder = fetched(proxy.url, bucket, "models/base/", tmp_path)
    assert folder == tmp_path / "buckets/s3" / bucket / "models/base" and content(folder) == model
    proxy.requests.clear()
    assert fetched(proxy.url, bucket, "models/base", tmp_path) == folder and proxy.requests == []
    file = fetched(proxy.url, bucket, "models/base/config.json", tmp_path)
    assert file == folder / "config.json" and content(folder) == model


def test_source_damaged_copy_is_downloaded_again(
    server: S3Server, bucket: str, model: dict[str, bytes], tmp_path: Path
) -> None:
    """A damaged file is replaced, unless the bucket has other content now: then the job does not continue with it."""
    folder = fetched(server.url, bucket, "models/base", tmp_path)
    (folder / "config.json").write_bytes(b"[]")
    fetched(server.url, bucket, "models/base", tmp_path)
    assert content(folder) == model
    (folder / "config.json").write_bytes(b"[]")
    store = opened(server.url, bucket, prefix="models/base")
    store.put_if_unchanged("config.json", b"other", store.stat("config.json").etag)
    with pytest.raises(DataError, match="has changed since it was downloaded first"):
        fetched(server.url, bucket, "models/base", tmp_path)


def test_source_flipped_bytes_do_not_arrive(
    proxy: S3Proxy, bucket: str, model: dict[str, bytes], tmp_path: Path
) -> None:
    """Without TLS a block is read until two reads agree: a flipped byte in every third body changes nothing."""
    proxy.before = lambda request: "flip" if request.number % 3 == 0 else ""
    assert content(fetched(proxy.url, bucket, "models/base/sub", tmp_path)) == {"weights.bin": model["sub/weights.bin"]}


def test_source_sums_are_compared(server: S3Server, bucket: str, model: dict[str, bytes], tmp_path: Path) -> None:
    """SHA256SUMS names the files of the source: another digest, or a missing file, is refused by name."""
    digests = {name: hashlib.sha256(body).hexdigest() for name, body in model.items()}
    lines = f"{digests['config.json']}  config.json\n{digests['sub/weights.bin']} *./sub/weights.bin\n"
    write(server, bucket, {"models/base/SHA256SUMS": lines.encode()})
    assert set(content(fetched(server.url, bucket, "models/base", tmp_path))) == {"config.json", "sub/weights.bin"}
    for number, (line, reason) in enumerate(
        {
            f"{'0' * 64}  config.json": rf"config\.json: SHA-256 is {digests['config.json']}, in SHA256SUMS 000",
            f"{'0' * 64}  absent": r"absent: no such object, but SHA256SUMS names it",
            f"{'0' * 64}  ../../other": "not a valid name",
            "config.json": "not a line of `sha256sum`",
        }.items()
    ):
        write(server, bucket, {f"wrong/{number}/config.json": model["config.json"]})
        write(server, bucket, {f"wrong/{number}/SHA256SUMS": line.encode()})
        with pytest.raises(DataError, match=reason):
            fetched(server.url, bucket, f"wrong/{number}", tmp_path)
    assert not list(tmp_path.rglob("other"))


def test_source_that_is_missing_is_named(server: S3Server, bucket: str, tmp_path: Path) -> None:
    """The message has the URL, and no retry is made."""
    with pytest.raises(DataError, match=rf"s3://{bucket}/none: no such object, and no object below"):
        fetched(server.url, bucket, "none", tmp_path)
    with pytest.raises(DataError, match=r"s3://absent-bucket/a.*NoSuchBucket"):
        fetched(server.url, "absent-bucket", "a", tmp_path)


def test_source_denied_access_names_the_secret(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the server's words and the field with the credentials."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DataError, match=r"SignatureDoesNotMatch.*spec\.secretRefs\.storage"):
        fetched(server.url, bucket, "a", tmp_path)


def test_source_folder_markers_are_no_files(server: S3Server, bucket: str) -> None:
    """Consoles create an empty object `folder/`: it is not a file of the source."""
    (server.data / bucket / "m/sub").mkdir(parents=True)
    write(server, bucket, {"m/sub/a": b"1"})
    assert [item.name for item in find_objects(opened(server.url, bucket, prefix=""), "m")] == ["m/sub/a"]


def manifest(server: S3Server, bucket: str, data: str) -> dict[str, Any]:
    return {
        "apiVersion": "rstar2.dev/v1alpha1",
        "kind": "AgenticRLJob",
        "metadata": {"name": "j"},
        "spec": {
            "model": {"source": f"s3://{bucket}/models/base", "assumeInstructionTuned": True},
            "accelerator": {"vendor": "None"},
            "trainer": {"gpusPerReplica": 0},
            "storage": {"endpointUrl": server.url},
            "stages": [{"name": "sft", "type": "SFT", "sft": {"data": f"s3://{bucket}/{data}"}}],
        },
    }


def test_source_in_a_cluster_is_prepared(server: S3Server, bucket: str, tmp_path: Path) -> None:
    """The prepare program downloads model and rows to the paths of the resolved job, and checks both."""
    model = content(random_model(tmp_path / "tiny", seed=0))
    write(server, bucket, {f"models/base/{name}": body for name, body in model.items()} | {"sft.jsonl": ROW})
    source = AgenticRLJob.model_validate(manifest(server, bucket, "sft.jsonl"))
    source.metadata.uid = "u"
    state = tmp_path / "state"
    resolved, claims = resolved_sources(source, str(state))
    (tmp_path / "job.json").write_text(resolved.model_dump_json(exclude_none=True))
    (tmp_path / "source.json").write_text(source.model_dump_json(exclude_none=True))
    command = [sys.executable, "-m", "rstar2_train.launch.pod", "prepare", "--job", str(tmp_path / "job.json")]
    command += ["--state", str(state), "--termination-log", str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == ExitCode.DONE, done.stderr
    assert claims == () and content(Path(resolved.spec.model.source)) == model
    assert (state / "buckets/s3" / bucket / "sft.jsonl").read_bytes() == ROW


def test_source_of_an_engine_is_that_of_the_preparation(
    server: S3Server, bucket: str, model: dict[str, bytes], tmp_path: Path
) -> None:
    """An engine downloads a model of a bucket itself; if the objects have changed since the preparation, it stops."""
    source = AgenticRLJob.model_validate(manifest(server, bucket, "sft.jsonl"))
    source.spec.storage.url = f"s3://{bucket}/runs"
    prepared, key = JobState(tmp_path / "prepared"), "models/base"
    prepared.root.mkdir()
    (prepared.root / "job.json").write_text("{}")
    path = fetched(server.url, bucket, key, prepared.root).relative_to(prepared.root)
    state = BucketState(opened(server.url, bucket, prefix=f"runs/{source.metadata.name}"), prepared)
    state.open()
    state.publish()
    fetch_model(source, f"s3://{bucket}/{key}", tmp_path / "engine" / path, tmp_path / "engine")
    assert content(tmp_path / "engine" / path) == model
    (server.data / bucket / key / "config.json").write_bytes(b"other")
    with pytest.raises(StorageRejected, match="has changed since it was downloaded first"):
        fetch_model(source, f"s3://{bucket}/{key}", tmp_path / "late" / path, tmp_path / "late")


def test_validate_tries_the_bucket(
    server: S3Server,
    bucket: str,
    model: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Missing objects are errors of their field; without credentials a note states that no bucket was tried."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(server, bucket, "sft.jsonl")))
    assert main(["validate", str(file)]) == 1
    errors = capsys.readouterr().err
    assert f"spec.stages[0].sft.data: s3://{bucket}/sft.jsonl: no such object" in errors
    assert "spec.model.source" not in errors
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert main(["validate", str(file)]) == 0
    assert "spec.model.source: the bucket was not tried" in capsys.readouterr().out


def test_doctor_tries_the_operations_of_a_bucket(
    server: S3Server, proxy: S3Proxy, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each operation is a finding; a missing bucket is named. No object stays."""
    command = ["doctor", "--json", "--endpoint-url", server.url, "--bucket"]
    assert main([*command, f"s3://{bucket}/team/job"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [finding["state"] for finding in findings] == ["ok"] * 6
    assert list(opened(server.url, bucket, prefix="").list()) == []
    assert main([*command, "s3://absent-bucket/x"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["subject"] == "put if absent" and "NoSuchBucket" in finding["detail"]
    assert main([*command, "s3://absent-bucket"]) == 1
    assert "must be s3://BUCKET/KEY" in capsys.readouterr().err
