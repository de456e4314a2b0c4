"""All events of the journal arrive in a real MLflow exactly once, whichever process dies."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from rstar2_train.tracking.shipper import Shipper, progress, run_id, send, ship
from rstar2_train.tracking.tracker import JOB, Ending, Tracker, journal_file, read_target

TIMEOUT = 240.0


def decode(ids: list[int]) -> str:
    return bytes(ids).decode()


def trajectory(sample: int) -> Trajectory:
    return Trajectory(
        prompt_id="p1",
        sample=sample,
        prompt_ids=list(b"Find the product of 12 and 17."),
        segments=[
            Segment("model", list(b"let me run it"), seconds=1.0, versions=[("v3", 0)]),
            Segment("tool", list(b"error: line 1: NameError"), seconds=0.25),
            Segment("model", list(b"<answer>\\boxed{204}</answer>"), seconds=0.5),
        ],
        calls=[ToolCall(1, "run", "prnt(12*17)", "", "error", "error: line 1: NameError", 0.05, 0.2)],
        turns=2,
        answer_tags=1,
        answer="204",
        gold="204",
        verdict="correct",
        reward=1.0,
        p_err=1.0,
        kept=sample == 0,
        selection_reason="positive",
        started_at=1_700_000_000.0,
        seconds=1.75,
    )


def train(tracker: Tracker, stage: str, first: int, last: int) -> None:
    for step in range(first, last + 1):
        tracker.log_metrics(stage, step=step, values={"reward/mean": step / 100, "tools/error_ratio": 1 / step})


def runs(state: Path) -> dict[str, Run]:
    """Return the runs of the job in MLflow by stage, and fail if a stage has two."""
    target = read_target(state)
    client = MlflowClient(target["uri"])
    experiment = client.get_experiment_by_name(target["experiment"])
    assert experiment is not None
    job_runs = client.search_runs([experiment.experiment_id], f"tags.`rstar2.job_uid` = '{target['uid']}'")
    names = [run.data.tags["rstar2.stage"] for run in job_runs]
    assert len(set(names)) == len(names)
    return dict(zip(names, job_runs, strict=True))


def history(state: Path, stage: str, key: str) -> list[tuple[int, float]]:
    client = MlflowClient(read_target(state)["uri"])
    run = runs(state)[stage].info.run_id
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run, key))


def expected(first: int, last: int) -> list[tuple[int, float]]:
    return [(step, step / 100) for step in range(first, last + 1)]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that child processes take for the proxy to the Internet."""
    for variable in ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.delenv(variable, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


def test_ship_of_complete_job_to_sqlite(state: Path, proxy: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, parameters, tags, metrics, artifacts and traces of a job with a restarted stage; no usage data."""
    manifest, report = JobState(state).manifest_file, JobState(state).report_file
    manifest.write_text("kind: AgenticRLJob\n")
    report.write_text("{}")
    tracker = Tracker(state, job="tiny")
    tracker.start_job({"seed": 1, "model": {"source": "./base"}})
    tracker.log_artifact(JOB, manifest)
    tracker.start_stage("rl-1", type="GRPO", attempt=1, params={"learning_rate": 1e-4, "steps": 5})
    train(tracker, "rl-1", 1, 3)
    tracker.log_traces("rl-1", step=3, trajectories=[trajectory(0), trajectory(1)], decode=decode)
    # The attempt is killed here. The next attempt continues the run with a changed setting.
    tracker.start_stage("rl-1", type="GRPO", attempt=2, params={"learning_rate": 2e-4, "steps": 5})
    train(tracker, "rl-1", 4, 5)
    tracker.end_stage("rl-1", "failed", reason="JudgeUnavailable")
    tracker.start_stage("rl-2", type="GRPO", attempt=1, params={})
    tracker.end_stage("rl-2", "suspended", reason="Suspended")
    tracker.log_metrics("rl-2", step=0, values={"evaluation/pass_at_1": 0.5})  # measured after the end of the stage
    tracker.log_artifact(JOB, report)
    tracker.end_job("failed")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # MLflow reports nothing from tests
    shipped = ship(state, timeout=TIMEOUT)
    assert (shipped.pending, shipped.refused, shipped.error) == (0, 0, "")
    with pytest.raises(BlockingIOError):  # nothing was reported to MLflow's makers
        proxy.accept()

    job_runs = runs(state)
    assert {stage: run.info.status for stage, run in job_runs.items()} == {
        "-": "FAILED",
        "rl-1": "FAILED",
        "rl-2": "KILLED",
    }
    job, stage = job_runs["-"], job_runs["rl-1"]
    assert (job.info.run_name, stage.info.run_name) == ("tiny", "tiny / rl-1")
    assert stage.data.tags["mlflow.parentRunId"] == job.info.run_id == run_id(state, JOB)
    assert job.data.params == {"seed": "1", "model.source": "./base"}
    assert stage.data.params == {"learning_rate": "0.0001", "steps": "5"}
    assert stage.data.tags["rstar2.changed.learning_rate"] == "0.0002"
    assert stage.data.tags["rstar2.attempt"] == "2"
    assert stage.data.tags["rstar2.reason"] == "JudgeUnavailable"
    assert history(state, "rl-1", "reward/mean") == expected(1, 5)
    assert history(state, "rl-2", "evaluation/pass_at_1") == [(0, 0.5)]
    client = MlflowClient(read_target(state)["uri"])
    assert [artifact.path for artifact in client.list_artifacts(job.info.run_id)] == ["manifest.yaml", "report.json"]
    assert (JobState(state).mlflow_artifacts).exists()

    traces = client.search_traces(
        locations=[job.info.experiment_id], filter_string="tags.kept = 'yes' and tags.stage = 'rl-1'"
    )
    assert len(traces) == 1
    info, spans = traces[0].info, traces[0].data.spans
    assert info.trace_metadata["mlflow.sourceRun"] == stage.info.run_id
    assert (info.request_time, info.execution_duration) == (1_700_000_000_000, 1750)
    assert [(span.name, span.span_type, span.status.status_code.value) for span in spans] == [
        ("rl-1 step 3", "AGENT", "OK"),
        ("generate turn 1", "LLM", "OK"),
        ("tool error", "TOOL", "ERROR"),
        ("generate turn 2", "LLM", "OK"),
        ("reward correct", "EVALUATOR", "OK"),
    ]
    assert [(span.end_time_ns - span.start_time_ns) / 1e9 for span in spans] == pytest.approx([1.75, 1, 0.25, 0.5, 0])
    assert spans[2].inputs == {"code": "~~~python\nprnt(12*17)\n~~~", "input": ""}
    assert spans[4].attributes["p_err"] == 1.0

    # The saved position is lost: sending the whole journal again changes nothing.
    before = [client.get_run(run.info.run_id).to_dictionary() for run in job_runs.values()]
    (JobState(state).track / "shipped.json").unlink()
    assert send(state, read_target(state)) and progress(state).complete
    assert [client.get_run(run.info.run_id).to_dictionary() for run in job_runs.values()] == before
    assert history(state, "rl-1", "reward/mean") == expected(1, 5)
    assert len(client.search_traces(locations=[job.info.experiment_id])) == 2


def test_shipper_retries_until_server_is_reachable(server, state: Path, until: Callable) -> None:  # type: ignore[no-untyped-def]
    """The server starts late and is killed once; every event arrives exactly once."""
    tracker = Tracker(state, job="tiny", uri=server.uri, uid="the-job")
    tracker.start_job({})
    tracker.start_stage("rl-1", type="GRPO", attempt=1, params={"steps": 90})
    train(tracker, "rl-1", 1, 30)
    shipper = Shipper(state)
    shipper.start()
    until(lambda: progress(state).error != "")  # the first request failed
    assert progress(state).sent == 0

    server.start()
    until(lambda: progress(state).complete)
    server.kill()
    train(tracker, "rl-1", 31, 60)
    tracker.log_traces("rl-1", step=60, trajectories=[trajectory(0)], decode=decode)
    # A writer dies within a line, and a new attempt continues.
    with journal_file(state).open("ab") as file:
        file.write(b'{"time":1,"kind":"metr')
    tracker = Tracker(state, job="tiny", uri=server.uri, uid="the-job")
    train(tracker, "rl-1", 61, 90)
    tracker.end_stage("rl-1", "completed", reason="StepsReached")
    tracker.end_job("completed")
    until(lambda: progress(state).error != "")
    assert shipper.alive

    server.start()
    shipped = shipper.stop(timeout=TIMEOUT)
    assert (shipped.pending, shipped.refused, shipped.error) == (0, 0, "")
    assert {stage: run.info.status for stage, run in runs(state).items()} == {"-": "FINISHED", "rl-1": "FINISHED"}
    assert history(state, "rl-1", "reward/mean") == expected(1, 90)
    client = MlflowClient(server.uri)
    experiment = runs(state)["-"].info.experiment_id
    assert len(client.search_traces(locations=[experiment])) == 1


@pytest.mark.parametrize("ending", ["completed", "failed", "deleted"])
def test_end_of_job_ends_the_runs_of_lost_events(ending: Ending, state: Path) -> None:
    """The start of a stage was sent, but the journal was lost with the disk of its pod: a bucket has an older one."""
    tracker = Tracker(state, job="tiny")
    tracker.start_job({})
    assert send(state, read_target(state))
    track = JobState(state).track
    published = {file: file.read_bytes() for file in track.iterdir()}
    tracker.start_stage("rl", type="GRPO", attempt=1, params={})
    assert send(state, read_target(state)) and runs(state)["rl"].info.status == "RUNNING"
    for file, content in published.items():
        file.write_bytes(content)
    tracker.end_job(ending)
    assert send(state, read_target(state))
    expected_status = {"completed": "FINISHED", "failed": "FAILED", "deleted": "KILLED"}[ending]
    assert {run.info.status for run in runs(state).values()} == {expected_status}


def test_restarted_stage_has_no_tags_of_its_end(state: Path) -> None:
    """A run that continues has neither the outcome nor the reason of the attempt before."""
    tracker = Tracker(state, job="tiny")
    tracker.start_job({})
    for attempt in (1, 2):
        tracker.start_stage("rl", type="GRPO", attempt=attempt, params={})
        assert send(state, read_target(state))
        run = runs(state)["rl"]
        assert run.info.status == "RUNNING" and not {"rstar2.outcome", "rstar2.reason"} & run.data.tags.keys()
        tracker.end_stage("rl", "failed", reason="RanksLost")
        assert send(state, read_target(state)) and runs(state)["rl"].data.tags["rstar2.reason"] == "RanksLost"


def test_send_skips_rejected_events(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An event that MLflow rejects is logged and counted, and the others are sent."""
    tracker = Tracker(state, job="tiny")
    tracker.start_job({})
    tracker.log_metrics(JOB, step=1, values={"good": 1.0})
    tracker.log_metrics(JOB, step=1, values={"x" * 300: 1.0})
    tracker.log_metrics(JOB, step=2, values={"good": 2.0})
    assert send(state, read_target(state))
    assert (progress(state).pending, progress(state).refused) == (0, 1)
    assert history(state, "-", "good") == [(1, 1.0), (2, 2.0)]
    assert "x" * 300 in caplog.text
    assert "rejected an event" in caplog.text and "rejected 1 events" in progress(state).rejection_message


def test_send_replaces_invalid_metric_characters(state: Path) -> None:
    """Characters of slice names that MLflow rejects are replaced."""
    tracker = Tracker(state, job="tiny")
    tracker.start_job({})
    tracker.log_metrics(
        JOB, step=1, values={"slices/Algebra, Geometry (hard)": 0.5, "slices//../": 0.25, "slices/zähl/x": 1.0}
    )
    assert send(state, read_target(state))
    assert (progress(state).refused, progress(state).rejection_message) == (0, "")
    for name, value in (("slices/Algebra_ Geometry _hard_", 0.5), ("slices", 0.25), ("slices/zähl/x", 1.0)):
        assert history(state, "-", name) == [(1, value)]


def test_send_after_deleted_run_starts_over(state: Path) -> None:
    """After the deletion of a run, the whole journal is sent again."""
    tracker = Tracker(state, job="tiny")
    tracker.start_job({})
    train(tracker, JOB, 1, 3)
    target = read_target(state)
    assert send(state, target)
    MlflowClient(target["uri"]).delete_run(run_id(state, JOB))
    train(tracker, JOB, 4, 6)
    assert not send(state, target)  # the run was deleted, so the position is reset
    assert send(state, target)
    assert history(state, "-", "reward/mean") == expected(1, 6)


def test_shipper_exits_after_death_of_parent(state: Path, until: Callable) -> None:  # type: ignore[no-untyped-def]
    """After `kill -9` of its parent, the shipper sends the remaining events and exits."""
    Tracker(state, job="tiny").start_job({})
    child = os.fork()
    if child == 0:
        shipper = Shipper(state)
        shipper.start()
        assert shipper._process is not None
        (state / "pid").write_text(str(shipper._process.pid))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    pid = int((state / "pid").read_text())
    until(lambda: not _running(pid))
    assert progress(state).complete


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
