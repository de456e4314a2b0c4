"""Measures a checkpoint in a bucket, next to a local folder and to torch.distributed.checkpoint with fsspec.

    python -m bench.storage

`make bench-storage` writes bench/results/storage.json. The bucket is on a real S3 server (VersityGW) on this machine:
there is no network in between, and the server takes its share of the cores. All seconds are medians of repetitions:

- `save_s`: the ranks write a checkpoint of more than 1 GB into the state folder, and the code of `rstar2 run` publishes
  it; `folder_save_s`: the first part alone, which is all that a job without `storage.url` does.
- `restore_s`: an empty folder gets the newest state of the bucket, and the ranks load it; `folder_restore_s`: the ranks
  load it from the folder. Both compare digests.
- `dcp_save_s`, `dcp_restore_s`: the same tensors between memory and bucket by `FsspecWriter` and `FsspecReader` of
  torch with s3fs; `dcp_folder_save_s`, `dcp_folder_restore_s`: between memory and folder. They have no digests.
- `added_share`: the time that a save in the bucket adds to the steps between two checkpoints of the default
  `checkpoint.everySteps`, as a share of these steps without a save; `folder_added_share`: the same without the bucket.
  A save that outlasts its steps counts until its end, although training does not wait for it. `added_cpu_s`: processor
  seconds of all processes, the server included, that a save adds; other work on the machine changes them less.
- `requests_per_step`: requests that the server logged, per step of these phases, by kind too.

QUICK=1 has fewer repetitions and shorter steps, and the same keys under `quick`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

from bench.pipeline_weights import write_model
from bench.provenance import ROOT, Load, describe_commit, describe_machine
from rstar2_train.api.job import CheckpointSpec
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.storage import StorageSpec
from rstar2_train.storage.job_state import BucketState, fetch_newest
from rstar2_train.storage.source import open_store
from rstar2_train.storage.store import ObjectStore
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence, TrainConfig
from tests.support.s3_server import CREDENTIALS, s3_server

RESULTS = ROOT / "bench" / "results" / "storage.json"
S3FS = "s3fs==2026.9.0"
SHAPE = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "vocab_size": 16384}
"""97 million parameters: with both moments in float32, 1.16 GB."""
EVERY_STEPS = CheckpointSpec().every_steps
REPEATS = {True: 3, False: 5}
STEP_TOKENS = {True: 512, False: 1024}
SEQUENCE_TOKENS = 128
PHASES = {
    True: ("none", "folder", "bucket", "none"),
    False: ("none", "folder", "bucket", "bucket", "folder", "none") * 3,
}
"""In this order, a slow drift of the machine cancels out."""
SMALL = 64
"""Tokens of the step between two repetitions, which changes every tensor."""


class Job:
    """The trainer of a job, its state folder, and the bucket."""

    def __init__(self, group: TrainerGroup, state: JobState, store: ObjectStore) -> None:
        self.group = group
        self.checkpoints = state.stage("rl").checkpoints
        self.checkpoints.mkdir(parents=True)
        state.job_file.write_text("{}", encoding="utf-8")
        self.bucket = BucketState(store, state)
        self.bucket.open()
        self.bucket.publish()
        self._step = 0
        self._draw = random.Random(0)

    def train(self, tokens: int) -> None:
        """Run one step on random tokens."""
        length = min(tokens, SEQUENCE_TOKENS)
        rows = [
            TokenSequence(
                np.array([self._draw.randrange(SHAPE["vocab_size"]) for _ in range(length)], np.int32),
                np.ones(length, np.bool_),
            )
            for _ in range(tokens // length)
        ]
        self.group.sft_step(rows, lr=1e-5)
        self._step += 1

    def write(self, *, keep: int = 1) -> None:
        """Write the snapshot of the ranks into the state folder, and delete older checkpoints."""
        folder = checkpoint.checkpoint_path(self.checkpoints, self._step)
        self.group.write_checkpoint(folder, step=self._step, extra={})
        checkpoint.prune(self.checkpoints, keep_last=keep)

    @property
    def newest(self) -> Path:
        """The newest checkpoint of the state folder."""
        return checkpoint.list_checkpoints(self.checkpoints)[-1][1]


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of an action."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def measure_saves(job: Job, store: ObjectStore, folder: Path, *, repeats: int) -> dict[str, Any]:
    """Return the seconds of saves and restores, and the processor time of an upload."""
    rows: list[dict[str, float]] = []
    for number in range(repeats):
        job.train(SMALL)
        job.group.snapshot_state()
        written = timed(job.write)
        own, every = time.process_time(), processor_seconds()
        published = timed(job.bucket.publish)
        own, every = time.process_time() - own, processor_seconds() - every
        cache = JobState(folder / f"restored-{number}")
        cache.root.mkdir()
        fetched = timed(lambda cache=cache: fetch_newest(store, cache))  # type: ignore[misc]
        (_, restored), *_ = checkpoint.list_checkpoints(cache.stage("rl").checkpoints)
        loaded = timed(lambda restored=restored: job.group.restore(restored))  # type: ignore[misc]
        shutil.rmtree(cache.root)
        local = timed(lambda: job.group.restore(job.newest))
        rows.append(
            {
                **{"save_s": written + published, "folder_save_s": written, "publish_s": published},
                **{"restore_s": fetched + loaded, "folder_restore_s": local, "fetch_s": fetched},
                **{"publish_cpu_s": own, "publish_server_cpu_s": every - own},
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {name: round(median(row[name] for row in rows), 3) for name in rows[0]} | {"rows": rows}


def processor_seconds() -> float:
    """Return the processor time of this process and of all processes below it that still run."""
    total = 0.0
    for process in (root := psutil.Process(), *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure_share(job: Job, log: Path, *, tokens: int, phases: tuple[str, ...]) -> dict[str, Any]:
    """Return what a save adds to the steps between two checkpoints, and the requests per step."""
    seconds: dict[str, list[float]] = {name: [] for name in phases}
    processor: dict[str, list[float]] = {name: [] for name in phases}
    held: list[float] = []
    requests: Counter[str] = Counter()
    job.train(tokens)
    for name in phases:
        before = len(log_lines(log))
        started, used = time.perf_counter(), processor_seconds()
        saving: threading.Thread | None = None
        for step in range(EVERY_STEPS):
            job.train(tokens)
            if step == 0 and name != "none":
                held.append(timed(job.group.snapshot_state))
                saving = threading.Thread(target=_save, args=(job, name == "bucket"))
                saving.start()
        if saving is not None:
            saving.join()
        seconds[name].append(time.perf_counter() - started)
        processor[name].append(processor_seconds() - used)
        if name == "folder":
            shutil.rmtree(job.newest)  # else the next publication would upload it too
        if name == "bucket":
            time.sleep(1)  # the server writes its log
            requests.update(request_kind(line) for line in log_lines(log)[before:])
        print(name, round(seconds[name][-1], 2), round(processor[name][-1], 2), file=sys.stderr, flush=True)
    alone = median(seconds["none"])
    busy = median(processor["none"])
    steps = EVERY_STEPS * len(seconds["bucket"])
    return {
        "added_share": round(median(seconds["bucket"]) / alone - 1, 4),
        "folder_added_share": round(median(seconds["folder"]) / alone - 1, 4),
        "added_cpu_s": {name: round(median(processor[name]) - busy, 2) for name in ("folder", "bucket")},
        "step_s": round(alone / EVERY_STEPS, 2),
        "every_steps": EVERY_STEPS,
        "held_s": round(median(held), 3),
        "phase_s": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "phase_cpu_s": {name: [round(value, 2) for value in values] for name, values in processor.items()},
        "requests_per_step": round(sum(requests.values()) / steps, 1),
        "requests_per_save": {kind: round(count / len(seconds["bucket"]), 1) for kind, count in requests.items()},
    }


def _save(job: Job, uploads: bool) -> None:
    job.write(keep=CheckpointSpec().keep_last)
    if uploads:
        job.bucket.publish()


def log_lines(log: Path) -> list[str]:
    """Return the requests that the server has logged."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [line for line in lines if " s3_" in line]


def request_kind(line: str) -> str:
    """Return the operation of a line of the server's access log, such as UploadPart."""
    return line.partition(" s3_")[2].split()[0]


def measure_dcp(job: Job, bucket: str, url: str, folder: Path, *, repeats: int) -> dict[str, float]:
    """Return the seconds of torch.distributed.checkpoint with s3fs, for the tensors of the newest checkpoint."""
    packages = _s3fs_packages()
    argv = [sys.executable, "-m", "bench.storage_dcp", str(job.newest), str(folder / "dcp"), f"s3://{bucket}/dcp"]
    environment = os.environ | {"PYTHONPATH": f"{packages}:{ROOT}"}
    done = subprocess.run(
        [*argv, "--endpoint", url, "--repeats", str(repeats)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _s3fs_packages() -> Path:
    """Return the packages of a venv with s3fs, which is created once."""
    folder = ROOT / ".rstar2" / "s3fs"
    if not (folder / S3FS).exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", S3FS], check=True)
        (folder / S3FS).touch()
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


@contextlib.contextmanager
def trainer(folder: Path) -> Iterator[TrainerGroup]:
    """Run one rank with a random model."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as writer:  # its memory ends with it
        writer.submit(write_model, folder / "model", SHAPE).result()
    config = TrainConfig(tokens_per_micro_batch=512, logprob_chunk_tokens=128, threads=1)
    with TrainerGroup(ranks=1, config=config) as group:
        group.load(folder / "model", optimizer=OptimizerConfig())
        yield group


def main() -> None:
    """Measure all, and write and print the result."""
    quick = os.environ.get("QUICK", "") not in ("", "0")
    started, load, commit = time.monotonic(), Load(), describe_commit()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-bench-")))
        log = folder / "requests.log"
        server = stack.enter_context(s3_server(folder / "server", "--access-log", str(log)))
        os.environ |= CREDENTIALS
        bucket = server.bucket("bench")
        settings = StorageSpec.model_validate({"url": f"s3://{bucket}/jobs", "endpointUrl": server.url})
        store = open_store(settings, "bench", patience=60)
        state = JobState(folder / "state")
        state.root.mkdir()
        job = Job(stack.enter_context(trainer(folder)), state, store)
        results = measure_saves(job, store, folder, repeats=REPEATS[quick])
        size = sum(file.stat().st_size for file in job.newest.iterdir())
        results |= measure_dcp(job, bucket, server.url, folder, repeats=REPEATS[quick])
        results |= measure_share(job, log, tokens=STEP_TOKENS[quick], phases=PHASES[quick])
    results |= {
        "bytes": size,
        "run": {
            "command": f"{'QUICK=1 ' if quick else ''}make bench-storage",
            "minutes": round((time.monotonic() - started) / 60, 1),
            "packages": [S3FS],
            "commit": commit,
            "machine": describe_machine(),
            "loadAverage": load.describe(),
        },
    }
    everything: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    everything = everything | {"quick": results} if quick else results | {"quick": everything.get("quick")}
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
