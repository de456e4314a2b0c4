"""`rstar2 analyse` from a job's state to its pages: what they hold, and that nothing in them can run."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.analysis import figures, pages
from rstar2_train.analysis.analyse import temperature
from rstar2_train.analysis.figures import Point, positions, slim
from rstar2_train.analysis.roc import sentences
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile, find
from rstar2_train.api.contracts import write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.main import main
from rstar2_train.grpo_roc.resample import RolloutStats, resample
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking.metrics import step_metrics

from .conftest import HOSTILE, ChatFormat, Rollout, empty_job, fill


def run(state: JobState, *options: str) -> int:
    return main(["analyse", state.root.name, "--state", str(state.root.parent), *options])


def argument(file: Path) -> Any:
    """What a data file calls its function with, which must be JSON and nothing else."""
    called = re.fullmatch(r"rstar2\.(?:index\(|chunk\(\d+,)(.*)\);\n", file.read_text(encoding="utf-8"), re.DOTALL)
    assert called, file.name
    return json.loads(called[1])


def table(out: Path) -> list[dict[str, Any]]:
    """The viewer's table, a dict a row, each with its text."""
    columns = argument(out / "data" / "index.js")["columns"]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    chunks = {number: argument(out / "data" / f"chunk-{number}.js") for number in {row["chunk"] for row in rows}}
    for row in rows:
        chunk = chunks[row["chunk"]]
        row["body"] = chunk["rows"][row["place"]]
        row["prompt_text"] = chunk["prompts"][row["body"]["prompt"]]
    return rows


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, rollout: Rollout) -> JobState:
    """A job whose pages are written; for tests that only read them."""
    state = fill(empty_job(tmp_path_factory.mktemp("jobs"), model_folder), rollout)
    assert run(state) == 0
    return state


def test_everything_that_was_stored_is_shown(analysed: JobState, chat_format: ChatFormat) -> None:
    stored = [one for source in find(analysed, analysed.job()) for one in trajectory_store.read(source.path)]
    rows = table(analysed.analysis)
    assert len(rows) == len(stored)
    for row, one in zip(rows, stored, strict=True):
        assert (row["prompt"], row["sample"], row["kept"], row["reason"]) == (
            one.prompt_id, one.sample, one.kept, one.kept_reason
        )  # fmt: skip
        assert row["prompt_text"] == chat_format.decode(one.prompt_ids)
        texts = [turn["text"] if turn["kind"] == "tool" else "".join(turn["pieces"]) for turn in row["body"]["turns"]]
        assert texts == [chat_format.decode(segment.token_ids) for segment in one.segments]
        for turn in row["body"]["turns"]:
            if turn["kind"] == "model":
                assert len(turn["pieces"]) == len(turn["surprisal"]) == sum(count for _, count in turn["regions"])
        assert row["entropy"] is None
    summary = json.loads((analysed.analysis / pages.SUMMARY).read_text())
    assert summary["entropy"] is None and set(summary["surprisal"]) == {"rl-1", "hard", "rl-2"}
    assert summary["selection"]["rl-1"]["dropped: penalty"] == {
        "rollouts": 2, "p_err_mean": 0.5, "p_format_mean": 0
    }  # fmt: skip
    assert {"index.html", "viewer.html", "reward.svg", "length.svg"} <= {
        one.name for one in analysed.analysis.iterdir()
    }


def test_figures_are_those_that_the_driver_tracks(analysed: JobState) -> None:
    [first, *_] = json.loads((analysed.analysis / pages.SUMMARY).read_text())["files"]
    rows = trajectory_store.read(trajectory_store.step_path(analysed.stage("rl-1").trajectories, 1))
    assert first["metrics"] == step_metrics([rows[:4], rows[4:]], {}, {})
    assert step_metrics([[slim(row) for row in rows]], {}, {}) == step_metrics([rows], {}, {})


@pytest.mark.parametrize(("sampled", "scored_at"), [(0.7, 0.7), (0.0, 1.0)])
def test_a_scored_stage(filled: JobState, model_folder: Path, sampled: float, scored_at: float) -> None:
    job = filled.job()
    assert job.spec.validation is not None
    job.spec.validation.sampling.temperature = sampled
    write_model(filled.job_file, job)
    shutil.copytree(model_folder, filled.stage("rl-1").model)
    assert run(filled, "--score", "rl-1", "--sample", "1") == 0
    entropy = json.loads((filled.analysis / pages.SUMMARY).read_text())["entropy"]
    assert (entropy["stage"], entropy["set"], entropy["trajectories"], entropy["temperature"]) == (
        "rl-1", "evaluation", 1, scored_at
    )  # fmt: skip
    assert entropy["logprob_gap"] > 1, "these log-probs were made up, no model sampled them"
    scored = [row for row in table(filled.analysis) if row["entropy"] is not None]
    assert len(scored) == 1 and 0 < entropy["kinds"]["all"]["mean"] == pytest.approx(scored[0]["entropy"], abs=1e-4)
    assert scored[0]["body"]["high"]["entropy"] != []


def test_the_same_trajectories_give_the_same_bytes(analysed: JobState, tmp_path: Path) -> None:
    assert run(analysed, "--out", str(tmp_path / "again")) == 0
    folders = (analysed.analysis, tmp_path / "again")
    one, two = ({path.relative_to(out): path.read_bytes() for path in out.rglob("*.*")} for out in folders)
    assert one == two and len(one) > 8


def test_a_few_groups_of_many(filled: JobState) -> None:
    assert run(filled, "--stage", "rl-1", "--limit", "6") == 0
    rows = table(filled.analysis)
    assert len(rows) == 6 and {row["set"] for row in rows} == {"training", "evaluation"}
    assert json.loads((filled.analysis / pages.SUMMARY).read_text())["trajectories"] == 18


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and all text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_a_model_wrote_cannot_run(analysed: JobState) -> None:
    """It reaches the data files as JSON without any `<`, the report escaped, and the page by way of text nodes."""
    [row] = [row for row in table(analysed.analysis) if row["stage"] == "rl-2"]
    assert row["prompt"] == row["slice"] == row["reason"] == row["body"]["gold"] == HOSTILE
    assert HOSTILE in "".join(row["body"]["turns"][-1]["pieces"])
    for file in (analysed.analysis / "data").iterdir():
        assert "<" not in file.read_text(encoding="utf-8"), file.name
    report = Tags(analysed.analysis / "index.html")
    assert HOSTILE in report.text
    viewer = Tags(analysed.analysis / "viewer.html")
    scripts = [attributes for tag, attributes in report.tags + viewer.tags if tag == "script"]
    assert scripts == [{"src": "viewer.js"}, {"src": "data/index.js"}]
    for page in (report, viewer):
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        [policy] = [one["content"] or "" for tag, one in page.tags if tag == "meta" and "http-equiv" in one]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        links = [one.get("src") or one.get("href") or "" for _, one in page.tags]
        assert not [link for link in links if ":" in link or link.startswith("//")], "everything lies beside the page"
    script = (analysed.analysis / "viewer.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|srcdoc", script)


def test_an_older_analysis_is_replaced_whole_or_not_at_all(
    filled: JobState, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, "--stage", "rl-1") == 0
    assert "18 trajectories, 18 of them in the viewer" in capsys.readouterr().out
    (filled.analysis / "left-over").touch()
    before = {path.name for path in filled.analysis.rglob("*")}
    torn = trajectory_store.step_path(filled.stage("rl-1").trajectories, 2)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:200] + b"torn" + whole[204:])
    assert run(filled) == 1
    assert "step-000002.parquet cannot be read as trajectories" in capsys.readouterr().err
    assert {path.name for path in filled.analysis.rglob("*")} == before
    torn.write_bytes(whole)
    for number in (999999999, os.getpid()):  # the second: killed, and started again in a container of its own
        (filled.root / f".analysis.new.{number}").mkdir()
    assert run(filled) == 0
    assert not (filled.analysis / "left-over").exists()
    assert [path.name for path in filled.root.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_something_else_is_left_alone(
    filled: JobState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "thesis"
    own.mkdir()
    (own / "chapter").touch()
    (own / pages.SUMMARY).touch()
    assert run(filled, "--out", str(own)) == 1
    assert "is no earlier analysis: it will not be replaced" in capsys.readouterr().err
    assert {path.name for path in own.iterdir()} == {"chapter", pages.SUMMARY}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stage", "rl-9"], "tiny has no stage 'rl-9'"),
        (["--score", "rl-9"], "rl-9 is neither a stage of tiny (sft, rl-1, hard, rl-2, eval) nor a folder"),
        (["--score", "rl-2"], "stage rl-2 has handed on no model"),
        (["--tokenizer", "/nonexistent"], "/nonexistent/tokenizer.json cannot be read as a tokenizer"),
    ],
)
def test_what_cannot_be_done_is_said(
    filled: JobState, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, *options) == 1
    assert words in capsys.readouterr().err
    assert not filled.analysis.exists()


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_is_at_least_one(state: JobState, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run(state, f"--limit={count}")
    assert end.value.code == 2
    assert f"argument --limit: '{count}' is not an integer of at least 1" in capsys.readouterr().err


def test_a_job_without_trajectories_and_no_job(state: JobState, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state) == 1
    assert "holds no trajectories yet" in capsys.readouterr().err
    assert run(JobState(state.root.parent / "nobody")) == 1
    assert "nobody: no such job" in capsys.readouterr().err
    state.job_file.write_text("{}")
    assert run(state) == 1
    assert "job.json is not a job: " in capsys.readouterr().err


def test_temperatures_are_those_of_the_sampling(state: JobState) -> None:
    job = state.job()
    asked = [("rl-1", "training"), ("rl-1", "evaluation"), ("hard", "filter"), ("eval", "evaluation")]
    found = [temperature(job, TrajectoryFile(Path("x"), stage, kind, 0)) for stage, kind in asked]  # type: ignore[arg-type]
    assert found == [1.0, 0.7, 0.9, 0.6]
    job.spec.validation = None
    with pytest.raises(AnalysisError, match=r"sampled under spec\.validation"):
        temperature(job, TrajectoryFile(Path("x"), "rl-1", "evaluation", 0))


def test_steps_follow_one_another_over_the_stages() -> None:
    def source(stage: str, kind: str, step: int) -> TrajectoryFile:
        return TrajectoryFile(Path(f"{stage}-{step}"), stage, kind, step)  # type: ignore[arg-type]

    files = [
        source("sft", "evaluation", 0), source("rl-1", "training", 1), source("rl-1", "training", 3),
        source("rl-1", "evaluation", 0), source("hard", "filter", 1), source("rl-2", "training", 2),
    ]  # fmt: skip
    places, stages = positions(files)
    assert [places.get(one) for one in files] == [0, 1, 3, 3, None, 5]
    assert stages == {"sft": (0, 0), "rl-1": (0, 3), "hard": (3, 3), "rl-2": (3, 5)}


def test_the_table_of_stages_shows_first_and_last() -> None:
    def point(stage: str, step: int, **metrics: float) -> Point:
        return Point(TrajectoryFile(Path("x"), stage, "training", step), 8, metrics)

    points = [
        point("a", 1, **{"reward/mean": 0.25}),
        point("a", 2),
        point("a", 3, **{"reward/mean": 0.5}),
        point("b", 1),
    ]
    first, second = pages.stage_rows(points)
    assert (first["files"], first["trajectories"], first["cells"][0]) == (3, 24, "0.250 → 0.500")
    assert second["cells"] == ["-"] * len(pages.STAGE_METRICS)


def test_the_table_of_stages_shows_the_mean_of_a_filters_slices() -> None:
    slices = [
        Point(TrajectoryFile(Path("x"), "hard", "filter", number), trajectories, {"reward/mean": reward})
        for number, trajectories, reward in ((1, 30, 0.9), (2, 10, 0.5))
    ]
    (row,) = pages.stage_rows(slices)
    assert (row["files"], row["trajectories"], row["cells"][0]) == (2, 40, "0.800")


def test_no_plot_of_what_was_never_measured(tmp_path: Path) -> None:
    source = TrajectoryFile(Path("x"), "a", "training", 1)
    drawn = figures.plot([Point(source, 1, {"reward/mean": 0.5})], tmp_path)
    assert [one.file for one in drawn] == ["reward.svg"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("mode", ["Paper", "Rank", "Uniform"])
def test_every_reason_of_the_selection_has_a_sentence(mode: str) -> None:
    right, wrong, lost = RolloutStats(reward=1), RolloutStats(reward=0), RolloutStats(reward=0, failed=True)
    given = set()
    for group in ([right] * 8, [wrong] * 8, [right] * 4 + [wrong] * 4, [right, lost]):
        given |= set(resample(group, keep=2, mode=mode, seed=0).reasons)  # type: ignore[arg-type]
    assert len(given) > 5 and given <= set(sentences(mode))  # type: ignore[arg-type]


def test_rollouts_without_text_are_shown_too(state: JobState, rollout: Rollout) -> None:
    """Lost before their first token; a prompt that nobody answered."""
    lost = rollout(stop="infrastructure", segments=[], calls=[], error="engine gone")
    trajectory_store.write(trajectory_store.step_path(state.stage("rl-1").trajectories, 1), [lost])
    assert run(state) == 0
    [row] = table(state.analysis)
    assert row["surprisal"] is None and row["body"]["turns"] == [] and row["body"]["error"] == "engine gone"
