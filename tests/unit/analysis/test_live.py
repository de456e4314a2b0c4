"""The live view without a browser: its rows, changed files, and rejected requests."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.analysis.live.curves import TRAINER_IDLE, JournalCurves, drawn_values
from rstar2_train.analysis.live.job import LiveJob
from rstar2_train.analysis.live.server import ViewServer
from rstar2_train.analysis.live.table import ROW_COLUMNS, read_table
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile
from rstar2_train.analysis.tokens import annotate
from rstar2_train.analysis.viewer import table_row
from rstar2_train.api.contracts import Progress, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.main import main
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, ToolCall
from rstar2_train.tracking.tracker import Tracker
from tests.support.token_arrays import token_array
from tests.support.trajectory_job import HOSTILE, ChatFormat, Rollout, empty_job, fill


def write_step(state: JobState, rollout: Rollout, step: int, *, count: int = 2, **fields: Any) -> Path:
    path = trajectory_store.step_path(state.stage("rl-1").trajectories, step)
    trajectory_store.write(path, [rollout(f"p{step}", sample, **fields) for sample in range(count)])
    return path


def test_read_table_equals_rows_of_the_viewer(tmp_path: Path, rollout: Rollout, chat_format: ChatFormat) -> None:
    """The columns are those that the static viewer computes from each trajectory."""
    failed = [ToolCall(0, "f", "", "", status, "") for status in ("ok", "error", "malformed")]
    rows = [
        rollout("p", 0, verdict="correct", reward=1.0, kept=True, selection_reason="kept: positive"),
        rollout("p", 1, calls=failed, p_err=2 / 3, p_format=0.12345),
        rollout("p", 2, segments=[], calls=[], stop="infrastructure", verdict="internal"),
        rollout(HOSTILE, 0, slice=HOSTILE),
        rollout("q", 0, segments=[Segment("prompt", token_array([1, 2])), *rollout().segments]),
    ] * 20  # more than one batch
    source = TrajectoryFile(tmp_path / "step-000003.parquet", "rl-1", "training", 3)
    trajectory_store.write(source.path, rows)
    stored = trajectory_store.read(source.path)
    expected = [table_row(source, row, annotate(row, chat_format.decode)) for row in stored]
    columns = read_table(source)
    assert tuple(columns) == ROW_COLUMNS
    assert columns == {name: [row[name] for row in expected] for name in ROW_COLUMNS}
    assert trajectory_store.read_row(source.path, 66) == stored[66]
    assert trajectory_store.count_rows(source.path) == 100
    with pytest.raises(IndexError):
        trajectory_store.read_row(source.path, 100)


def test_live_job_sends_only_new_rows(state: JobState, rollout: Rollout) -> None:
    """A page that has all rows of the generation gets those of new files only."""
    job = LiveJob(state, limit=100)
    news = job.news(-1, 0, 0)
    assert (news["start"], news["columns"]["prompt"], news["status"]["progress"]) == (0, [], None)
    generation = news["generation"]
    write_step(state, rollout, 1)
    news = job.news(generation, 0, 0)
    assert news["columns"]["prompt"] == ["p1", "p1"]
    write_step(state, rollout, 2)
    write_model(state.progress_file, Progress(stage="rl-1", attempt=1, step=2, total_steps=9))
    news = job.news(generation, 2, 0)
    assert (news["generation"], news["start"], news["columns"]["prompt"]) == (generation, 2, ["p2", "p2"])
    assert news["status"]["progress"]["totalSteps"] == 9
    assert [stage["phase"] for stage in news["status"]["stages"]] == ["pending", "current", *["pending"] * 3]
    assert "table" not in news and job.news(-1, 0, 0)["table"]["weighted"] == {"rl-1": True, "rl-2": False}


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_live_job_changed_file_gets_new_generation(state: JobState, rollout: Rollout, change: str) -> None:
    """Rows of a deleted or repeated step are not mixed with others: the page loads the table again."""
    first = write_step(state, rollout, 1)
    write_step(state, rollout, 2)
    job = LiveJob(state, limit=100)
    generation = job.news(-1, 0, 0)["generation"]
    assert job.trajectory(generation, 0)["row"]["gold"] == "1"
    if change == "deleted":
        first.unlink()
    else:
        write_step(state, rollout, 1, gold="2")
    news = job.news(generation, 4, 0)
    assert news["generation"] > generation and news["start"] == 0
    assert news["columns"]["prompt"] == (["p2"] * 2 if change == "deleted" else ["p1"] * 2 + ["p2"] * 2)
    with pytest.raises(AnalysisError, match="the table has changed"):
        job.trajectory(generation, 0)
    with pytest.raises(AnalysisError, match="the table has changed"):
        job.search(generation, "x")
    if change == "replaced":
        assert job.trajectory(news["generation"], 0)["row"]["gold"] == "2"


def test_live_job_shows_newest_files_up_to_limit(state: JobState, rollout: Rollout) -> None:
    """Old steps leave the table of a long job, and the page states how many trajectories are stored."""
    job = LiveJob(state, limit=4)
    for step in (1, 2, 3):
        write_step(state, rollout, step)
    news = job.news(-1, 0, 0)
    assert news["columns"]["step"] == [2, 2, 3, 3]
    assert news["table"]["trajectories"] == news["status"]["stored"] == 6


def test_live_job_names_damaged_file_and_shows_others(state: JobState, rollout: Rollout) -> None:
    """A damaged file does not stop the view."""
    write_step(state, rollout, 1)
    damaged = write_step(state, rollout, 2)
    content = damaged.read_bytes()
    damaged.write_bytes(b"PAR1 but not a file of trajectories PAR1")
    job = LiveJob(state, limit=100)
    for _ in range(2):
        news = job.news(-1, 0, 0)
        assert news["columns"]["step"] == [1, 1]
        assert "step-000002.parquet cannot be read as trajectories" in news["status"]["faults"][0]
    damaged.write_bytes(content)
    news = job.news(-1, 0, 0)
    assert news["columns"]["step"] == [1, 1, 2, 2] and news["status"]["faults"] == []


def test_live_job_search_reads_prompts_and_responses(state: JobState, rollout: Rollout) -> None:
    """The search is that of the static viewer: prompt, prompt id and response, in any case."""
    write_step(state, rollout, 1, text="The Answer is 7")
    write_step(state, rollout, 2, text="other")
    job = LiveJob(state, limit=100)
    generation = job.news(-1, 0, 0)["generation"]
    matches = {text: job.search(generation, text) for text in ("ANSWER is", "P2", "what is 1", "nothing", "(")}
    assert matches == {"ANSWER is": [0, 1], "P2": [2, 3], "what is 1": [0, 1, 2, 3], "nothing": [], "(": []}


def test_live_job_curves_follow_the_journal(state: JobState) -> None:
    """Points are the drawn metrics of the stages; a page gets those that it does not have."""
    tracker = Tracker(state.root, job="tiny")
    tracker.start_job({})
    tracker.log_metrics("rl-1", step=1, values={"reward/mean": 0.5, "trainer/lr": 1})
    job = LiveJob(state, limit=1)
    news = job.news(-1, 0, 0)
    assert news["points"] == [("rl-1", 1, {"reward/mean": 0.5})]
    tracker.log_metrics("rl-1", step=2, values={"time/wait_seconds": 1, "time/step_seconds": 4})
    news = job.news(news["generation"], 0, 1)
    assert news["points"] == [("rl-1", 2, {TRAINER_IDLE: 0.25, "time/step_seconds": 4.0})]
    tracker.close()
    assert drawn_values({"time/wait_seconds": 1, "time/step_seconds": 0}) == {"time/step_seconds": 0}
    journal = state.track / "journal.jsonl"
    metrics = JournalCurves(journal)
    assert not metrics.read() and len(metrics.points) == 2
    journal.unlink()  # the job was deleted, and another one of its name has started
    tracker = Tracker(state.root, job="tiny")
    tracker.log_metrics("rl-1", step=1, values={"reward/mean": 0.1})
    assert metrics.read() and metrics.points == [("rl-1", 1, {"reward/mean": 0.1})]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, rollout: Rollout) -> Iterator[ViewServer]:
    """The server of a job with trajectories."""
    state = fill(empty_job(tmp_path_factory.mktemp("jobs"), model_folder), rollout)
    with ViewServer(LiveJob(state, limit=100), name=HOSTILE) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server: ViewServer, path: str, host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, response.headers


def test_view_server_answers_this_machine_with_token_only(server: ViewServer) -> None:
    """Pages of other sites and other users of the machine get nothing: also with a name that resolves to 127.0.0.1."""
    news = f"/{server.token}/news.json?generation=-1&rows=0&points=0"
    assert [get(server, news, host)[0] for host in (None, "localhost:99", "127.0.0.1:1")] == [200] * 3
    for host in ("attacker.example", "attacker.example:80", "127.0.0.1.attacker.example:80", ""):
        status, text, _ = get(server, news, host)
        assert status == 421 and "prompt" not in text
    for path in ("/", "/x/", "/news.json?generation=-1&rows=0&points=0", f"/{server.token}x/", f"/{server.token}/x/y"):
        assert get(server, path)[0] == 404, path
    for name in ("../viewer.js", "viewer.py", "%2e%2e/viewer.js", "live.js/"):
        assert get(server, f"/{server.token}/{name}")[0] == 404, name
    assert server.server_address[0] == "127.0.0.1"


def test_view_server_page_allows_no_foreign_code(server: ViewServer) -> None:
    """The name of the job is escaped, and the security policy allows scripts of the server only."""
    status, page, headers = get(server, f"/{server.token}/")
    assert status == 200 and HOSTILE not in page and "onerror=\\" not in page
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["Cache-Control"] == "no-store"


def test_view_server_sends_trajectories(server: ViewServer) -> None:
    """A row is loaded with its texts; invalid and outdated queries are errors with a message."""
    folder = f"/{server.token}/"
    news = json.loads(get(server, f"{folder}news.json?generation=-1&rows=0&points=0")[1])
    row = news["columns"]["prompt"].index(HOSTILE)
    status, text, _ = get(server, f"{folder}trajectory.json?generation={news['generation']}&row={row}")
    assert status == 200
    assert HOSTILE in "".join(json.loads(text)["row"]["turns"][-1]["pieces"])
    for query, code in (("generation=9&row=0", 409), (f"generation={news['generation']}&row=-1", 409), ("row=x", 400)):
        status, text, _ = get(server, f"{folder}trajectory.json?{query}")
        assert status == code and json.loads(text)["error"], query


def test_view_of_unknown_job_or_used_port_fails(
    state: JobState, server: ViewServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names the cause."""
    folder = ["--state", str(state.root.parent)]
    assert main(["view", "missing", *folder]) == 1
    assert "no such job" in capsys.readouterr().err
    assert main(["view", "tiny", *folder, "--port", str(server.server_port)]) == 1
    assert f"cannot listen on 127.0.0.1:{server.server_port}: Address already in use" in capsys.readouterr().err
