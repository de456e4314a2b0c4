"""The pods of a job with a bucket: each starts on an empty disk, continues the state, and publishes in its turn."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import CheckpointRef, ExitCode, Outcome, StageFailed, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.launch.pod.attempt import AttemptOptions, _TrainerPod
from rstar2_train.launch.pod.attempt_record import acquire_attempt
from rstar2_train.launch.pod.bucket import PodBucket
from rstar2_train.launch.state_upload import UploadTimes
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.host_objects import HOST_OBJECTS
from rstar2_train.storage.job_state import BucketState, fetch_newest, is_ahead
from rstar2_train.storage.manifest import PodStart, PublicationIndex
from rstar2_train.storage.pod_starts import launch_start, prepare_start, report_start
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.store import AccessDenied, StorageUnavailable
from tests.support.full_disk import small_disk
from tests.support.good_manifest import changed
from tests.support.simulated_cluster import manifest

TIMES = UploadTimes(request=0, poll=0.01, interval=1000, longest_wait=0.02, finish=0.2)
WRITER = "a" * 32
PREPARE, REPORT = PodStart(uid="one", program="prepare"), PodStart(uid="one", program="report")


def attempt_of(stage: str, number: int, uid: str = "one") -> PodStart:
    return PodStart(uid=uid, program="launch", stage=stage, attempt=number)


@pytest.mark.parametrize(
    ("last", "start", "reason"),
    [
        (None, PREPARE, ""),
        (PREPARE, PREPARE, ""),  # a retry of the Job
        (PREPARE, attempt_of("sft", 1), ""),
        (attempt_of("sft", 1), PREPARE, "attempt 1 of stage sft has started"),
        (attempt_of("sft", 1), attempt_of("sft", 2), ""),
        (attempt_of("sft", 2), attempt_of("sft", 1), "attempt 2 of stage sft has started"),
        (attempt_of("sft", 2), attempt_of("more", 1), ""),
        (attempt_of("sft", 2), REPORT, ""),
        (REPORT, REPORT, ""),
        (REPORT, attempt_of("sft", 3), "the report of the job has started"),
        (REPORT, PREPARE, "the report of the job has started"),
        (REPORT, attempt_of("sft", 1, "two"), ""),  # the job was deleted and created again
    ],
)
def test_index_older_pod_is_refused(last: PodStart | None, start: PodStart, reason: str) -> None:
    """A pod that starts late, after the pod that replaces it, takes no publication from it."""
    assert PublicationIndex(attempt=1, writer=WRITER, start=last).refusal(start) == reason


def test_index_pods_of_a_deleted_job_are_refused() -> None:
    """A job of the same name has another UID; the pods of the deleted one, on a lost node, publish nothing any more."""
    index = PublicationIndex(attempt=1, writer=WRITER, start=attempt_of("sft", 1, "one"))
    index = index.claimed(attempt_of("sft", 1, "two"))
    assert index.refusal(attempt_of("sft", 9, "one")) == "the job was deleted and created again"
    assert index.refusal(REPORT) == "the job was deleted and created again"
    assert index.refusal(attempt_of("sft", 2, "two")) == ""
    assert index.claimed(attempt_of("sft", 2, "two")).replaced == ["one"]


@pytest.fixture
def job(tmp_path: Path) -> AgenticRLJob:
    """A job whose bucket is a folder."""
    return load(changed("spec.storage", {"url": f"file://{tmp_path}/bucket"}))


def disk(tmp_path: Path, name: str) -> JobState:
    """Return the empty disk of a new pod."""
    return JobState(tmp_path / name)


def bucket_of(job: AgenticRLJob, state: JobState, start: PodStart) -> PodBucket:
    return PodBucket(job, state, start, start_seconds=0, times=TIMES)


def test_bucket_attempts_continue_on_empty_disks(job: AgenticRLJob, tmp_path: Path) -> None:
    """Preparation, two attempts and the report have only what the pods before them published."""
    first = bucket_of(job, disk(tmp_path, "prepare"), prepare_start(job))
    assert first.open()
    (tmp_path / "prepare" / "models").mkdir()
    (tmp_path / "prepare" / "models" / ".rstar2-complete").write_text("downloaded")
    first.publish()

    async def attempt(number: int) -> list[str]:
        state = disk(tmp_path, f"attempt-{number}")
        bucket = bucket_of(job, state, launch_start(job, "sft", number))
        assert bucket.open() and (state.root / "models" / ".rstar2-complete").exists()
        names = sorted(path.name for path in state.stage("sft").checkpoints.glob("*"))
        bucket.publish()
        bucket.follow()
        folder = state.stage("sft").checkpoints / f"step-{number:06d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(str(number))
        assert await bucket.finish() == ""
        return names

    assert asyncio.run(attempt(1)) == []
    assert asyncio.run(attempt(2)) == ["step-000001"]
    report, root = bucket_of(job, disk(tmp_path, "report"), report_start(job)), tmp_path / "report"
    assert report.open()
    assert not disk(tmp_path, "report").stage("sft").checkpoints.exists() and not (root / "models").exists()
    report.publish()
    assert published(job, tmp_path, "sft") == ["step-000001", "step-000002"]


def published(job: AgenticRLJob, tmp_path: Path, stage: str) -> list[str]:
    """Return the checkpoints of a stage in the bucket."""
    copy = disk(tmp_path, f"copy-{uuid.uuid4().hex}")
    copy.root.mkdir()
    fetch_newest(LocalFolder(tmp_path / "bucket" / job.metadata.name), copy)
    assert stage != "sft" or (copy.root / "models" / ".rstar2-complete").exists()
    return sorted(path.name for path in copy.stage(stage).checkpoints.glob("*"))


def test_bucket_attempt_downloads_the_checkpoints_that_it_needs(tmp_path: Path) -> None:
    """An attempt has its own checkpoints, and the one that it starts from. The others stay in the bucket alone."""
    job = load(manifest("sgge", storage={"url": f"file://{tmp_path}/bucket"}))
    stages = [stage.name for stage in job.spec.stages]
    for number, name in enumerate(stages):
        state = disk(tmp_path, name)
        bucket = bucket_of(job, state, launch_start(job, name, 1))
        bucket.open()
        paths = {path.relative_to(state.root).as_posix() for path in state.root.glob("stages/*/checkpoints/*")}
        learns = job.spec.stages[number].learns
        assert paths == ({f"stages/{stages[number - 1]}/checkpoints/step-000002"} if number and learns else set())
        bucket.publish()
        reference = None
        for step in (1, 2, 3) if learns else ():
            folder = state.stage(name).checkpoints / f"step-{step:06d}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(f"{name} {step}")
            bucket.publish()
            reference = CheckpointRef(path=f"stages/{name}/checkpoints/step-000002", step=2)
        outcome = Outcome(stage=name, attempt=1, outcome="completed", reason="Completed", checkpoint=reference)
        write_model(state.stage(name).outcome_file, outcome)
        assert asyncio.run(bucket.finish()) == ""
    for name in stages[:3]:
        assert published(job, tmp_path, name) == ["step-000001", "step-000002", "step-000003"]
    again = disk(tmp_path, stages[2])  # a process that finds a folder with missing files restores it
    (again.stage("s0").root / "checkpoints" / "torn").mkdir(parents=True)
    assert bucket_of(job, disk(tmp_path, "report"), report_start(job)).open()
    assert BucketState(LocalFolder(tmp_path / "bucket" / job.metadata.name), again).open()
    assert len(list(again.root.glob("stages/*/checkpoints/*/manifest.json"))) == 9


def test_bucket_attempt_of_several_pods_leaves_shards_there(tmp_path: Path) -> None:
    """Pod 0 restores no tensors: each pod reads those that its ranks need. All stay a part of the state."""
    job = load(
        manifest("sg", storage={"url": f"file://{tmp_path}/bucket"}, trainer={"replicas": 2, "gpusPerReplica": 0})
    )
    folder = "stages/s0/checkpoints/step-000001"
    manifest_file, index, shard = (f"{folder}/{name}" for name in ("manifest.json", ".metadata", "__0_0.distcp"))
    for number, pods in ((1, 2), (2, 2), (3, 1)):
        job.spec.trainer.replicas = pods
        state = disk(tmp_path, str(number))
        bucket = bucket_of(job, state, launch_start(job, "s0", number))
        bucket.open()
        files = {path.relative_to(state.root).as_posix() for path in state.root.glob("stages/*/checkpoints/*/*")}
        record = f"{folder}/{HOST_OBJECTS}"
        assert files == {1: set(), 2: {manifest_file, index, record}, 3: {manifest_file, index, shard}}[number]
        for name in (manifest_file, index, shard) if number == 1 else ():
            (state.root / name).parent.mkdir(parents=True, exist_ok=True)
            (state.root / name).write_text(name)
        bucket.publish()


def test_bucket_late_attempt_stops_without_a_claim(job: AgenticRLJob, tmp_path: Path) -> None:
    """Attempt 2 stays the owner if the pod of attempt 1 starts late; a new preparation only reads then."""
    second = bucket_of(job, disk(tmp_path, "second"), launch_start(job, "sft", 2))
    second.open()
    for start in (launch_start(job, "sft", 1), prepare_start(job)):
        with pytest.raises(Fenced, match="attempt 2 of stage sft has started"):
            bucket_of(job, disk(tmp_path, "late"), start).open()
    second.publish()
    bucket_of(job, disk(tmp_path, "late"), prepare_start(job)).restore()


def test_bucket_job_of_another_namespace_is_refused(job: AgenticRLJob, tmp_path: Path) -> None:
    """A job of the same name and URL in another namespace neither gets nor fences the state, with each of its pods."""
    job.metadata.namespace = "lab"
    first = bucket_of(job, disk(tmp_path, "first"), launch_start(job, "sft", 1))
    first.open()
    first.publish()
    other = job.model_copy(deep=True)
    other.metadata.namespace, other.metadata.uid = "office", "two"
    for number, start in enumerate((prepare_start(other), launch_start(other, "sft", 9), report_start(other))):
        with pytest.raises(StageFailed, match="of this name in namespace lab: set another url") as caught:
            bucket_of(other, disk(tmp_path, f"other-{number}"), start).open()
        assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)
        assert not list(disk(tmp_path, f"other-{number}").root.iterdir())
    first.publish()
    again = job.model_copy(deep=True)  # deleted, and created again
    again.metadata.uid = "three"
    assert bucket_of(again, disk(tmp_path, "again"), prepare_start(again)).open()


def test_bucket_attempt_of_an_ended_stage_claims_nothing(job: AgenticRLJob, tmp_path: Path) -> None:
    """A late pod of a stage that has ended gets the state and its outcome, and the next stage stays the owner."""
    first = bucket_of(job, disk(tmp_path, "first"), launch_start(job, "sft", 1))
    first.open()
    outcome = Outcome(stage="sft", attempt=1, outcome="completed", reason="Completed")
    write_model(disk(tmp_path, "first").stage("sft").outcome_file, outcome)
    first.publish()
    second = bucket_of(job, disk(tmp_path, "second"), launch_start(job, job.spec.stages[1].name, 1))
    assert second.open()
    late = disk(tmp_path, "late")
    assert not bucket_of(job, late, launch_start(job, "sft", 1)).open()
    assert late.stage("sft").outcome() == outcome
    second.publish()


def test_bucket_fenced_attempt_is_stopped(job: AgenticRLJob, tmp_path: Path) -> None:
    """An attempt on a lost node notices the next one at its next upload, publishes nothing, and knows why."""

    async def play() -> None:
        first = bucket_of(job, disk(tmp_path, "first"), launch_start(job, "sft", 1))
        first.open()
        first.publish()
        first.follow()
        bucket_of(job, disk(tmp_path, "second"), launch_start(job, "sft", 2)).open()
        (disk(tmp_path, "first").stage("sft").checkpoints / "step-000001").mkdir(parents=True)
        (disk(tmp_path, "first").stage("sft").checkpoints / "step-000001" / "manifest.json").write_text("1")
        async with asyncio.timeout(30):
            while not first.fenced:
                await asyncio.sleep(0.01)
        assert "the job was started again" in first.fenced
        assert "publishes nothing" in await first.finish()

    asyncio.run(play())
    third = disk(tmp_path, "third")
    bucket_of(job, third, launch_start(job, "sft", 3)).open()
    assert not third.stage("sft").checkpoints.exists()


def test_bucket_attempt_fenced_at_its_end_is_stale(job: AgenticRLJob, tmp_path: Path) -> None:
    """An attempt that notices the next one with its last upload announces no outcome of its own."""
    (tmp_path / "log").touch()
    (tmp_path / "job.json").write_text(job.model_dump_json())
    options = AttemptOptions(
        job_file=tmp_path / "job.json",
        state=tmp_path / "first",
        stage="sft",
        attempt=1,
        nodes=1,
        subdomain="pods",
        termination_log=tmp_path / "log",
    )
    announced: list[Outcome] = []

    class Mirror:
        async def conclude(self, outcome: Outcome) -> None:
            announced.append(outcome)

    async def play(mirror: Any) -> int:
        pod = _TrainerPod(options, job)
        pod._bucket.open()
        assert acquire_attempt(pod._folder.attempt_file, pod._attempt) == ""
        bucket_of(job, disk(tmp_path, "second"), launch_start(job, "sft", 2)).open()
        return await pod._conclude(mirror, pod._outcome("completed", "Completed", ""))

    assert asyncio.run(play(Mirror())) == ExitCode.RETRYABLE
    assert (tmp_path / "log").read_text().startswith("StaleAttempt: ") and not announced


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (StorageUnavailable("503 SlowDown: busy"), "StorageUnavailable", True),
        (AccessDenied("403 AccessDenied: no"), "BadConfiguration", False),
    ],
)
def test_bucket_without_answer_is_the_outcome(
    error: Exception, reason: str, retryable: bool, job: AgenticRLJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of the pod has the server's own words; only an outage is worth another attempt."""

    def read(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(LocalFolder, "read", read)
    with pytest.raises(StageFailed, match=str(error).split(":")[0]) as caught:
        bucket_of(job, disk(tmp_path, "pod"), launch_start(job, "sft", 1)).open()
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)


def test_bucket_state_larger_than_the_disk_is_refused(job: AgenticRLJob, tmp_path: Path) -> None:
    """The outcome names the disk of the pod and what gives it a larger one, before the state is downloaded."""
    first = bucket_of(job, disk(tmp_path, "prepare"), prepare_start(job))
    first.open()
    (tmp_path / "prepare/model.bin").write_bytes(bytes(2 * 2**20))
    first.publish()
    with small_disk(tmp_path / "small", mebibytes=1) as small:
        with pytest.raises(StageFailed, match=rf"{small}/pod, 2 MiB are needed.*raise spec\.storage\.size") as caught:
            bucket_of(job, disk(small, "pod"), launch_start(job, "sft", 1)).open()
        assert (caught.value.reason, caught.value.retryable) == ("StorageFull", False)
        assert not (small / "pod/model.bin").exists()


def test_bucket_outage_is_in_the_progress(job: AgenticRLJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the bucket does not answer, the progress has the server's words; at the end they are the failure."""

    async def play() -> None:
        bucket = bucket_of(job, disk(tmp_path, "pod"), launch_start(job, "sft", 1))
        bucket.open()
        bucket.publish()
        assert bucket.outage() == {}

        def put(*_: Any, **__: Any) -> None:
            raise StorageUnavailable("503 SlowDown: busy")

        monkeypatch.setattr(LocalFolder, "put_if_unchanged", put)
        message = await bucket.finish()
        assert "503 SlowDown: busy" in message and "new attempt continues from the newest state" in message
        assert bucket.outage() == {"storage": "503 SlowDown: busy"}

    asyncio.run(play())


def test_bucket_of_a_claim_does_nothing(tmp_path: Path) -> None:
    """The pods of a job with a claim send no request."""
    job = load(changed("spec.seed", 1))
    bucket = bucket_of(job, disk(tmp_path, "pod"), launch_start(job, "sft", 1))
    assert not bucket.open()
    bucket.publish()
    bucket.follow()
    assert asyncio.run(bucket.finish()) == "" and bucket.outage() == {}


def test_claim_that_was_fetched_belongs_to_its_job(job: AgenticRLJob, tmp_path: Path) -> None:
    """A later fetch keeps what a job has written since its move to a claim, and the job can move back."""
    run = bucket_of(job, disk(tmp_path, "run"), PREPARE)
    assert run.open()
    disk(tmp_path, "run").progress_file.write_text("step 1")
    run.publish()
    store, claim = LocalFolder(tmp_path / "bucket" / job.metadata.name), disk(tmp_path, "claim")
    assert fetch_newest(store, claim)
    moved = load(changed("spec.storage", {"claimName": "runs"}))
    assert not bucket_of(moved, claim, PREPARE).open()
    claim.progress_file.write_text("step 7")
    assert not fetch_newest(store, claim) and claim.progress_file.read_text() == "step 7"
    assert is_ahead(store, claim)


def test_claim_with_a_part_of_a_state_is_refused(job: AgenticRLJob, tmp_path: Path) -> None:
    """A job does not start on a fetch that was interrupted, or left checkpoints out."""
    run = bucket_of(job, disk(tmp_path, "run"), PREPARE)
    assert run.open()
    run.publish()
    claim = disk(tmp_path, "claim")
    fetch_newest(LocalFolder(tmp_path / "bucket" / job.metadata.name), claim, checkpoints=False)
    moved = load(changed("spec.storage", {"claimName": "runs"}))
    with pytest.raises(StageFailed, match=r"was not restored completely from .*: repeat `rstar2 fetch`") as failure:
        bucket_of(moved, claim, PREPARE).open()
    assert failure.value.reason == "BadConfiguration"
