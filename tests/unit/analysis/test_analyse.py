"""`rstar2 analyse` from the state of a job to its pages: their content, and that texts of models cannot run."""

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.analysis import figures, live, pages
from rstar2_train.analysis.analyse import sampling_temperature
from rstar2_train.analysis.figures import Point, axis_positions, without_tokens
from rstar2_train.analysis.roc import reason_texts
from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile, find_files
from rstar2_train.api.contracts import write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.main import main
from rstar2_train.grpo_roc.resample import RolloutStats, resample
from rstar2_train.rollout import trajectory_store
from rstar2_train.tracking.metrics import step_metrics
from tests.support.trajectory_job import HOSTILE, ChatFormat, Rollout, empty_job, fill


def run(state: JobState, *options: str) -> int:
    return main(["analyse", state.root.name, "--state", str(state.root.parent), *options])


def argument(file: Path) -> Any:
    """Return the argument of a data file's function call, which must be JSON only."""
    call = re.fullmatch(r"rstar2\.(?:index\(|chunk\(\d+,)(.*)\);\n", file.read_text(encoding="utf-8"), re.DOTALL)
    assert call, file.name
    return json.loads(call[1])


def table(out: Path) -> list[dict[str, Any]]:
    """Return the rows of the viewer's table with their texts."""
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
    """A job with pages, for tests that only read them."""
    state = fill(empty_job(tmp_path_factory.mktemp("jobs"), model_folder), rollout)
    assert run(state) == 0
    return state


def test_analyse_shows_all_stored_trajectories(analysed: JobState, chat_format: ChatFormat) -> None:
    """The viewer has all stored trajectories with their texts, and the summary has the figures."""
    files = find_files(analysed, analysed.job())
    stored = [trajectory for file in files for trajectory in trajectory_store.read(file.path)]
    rows = table(analysed.analysis)
    assert len(rows) == len(stored)
    for row, trajectory in zip(rows, stored, strict=True):
        assert (row["prompt"], row["sample"], row["kept"], row["reason"]) == (
            trajectory.prompt_id, trajectory.sample, trajectory.kept, trajectory.selection_reason
        )  # fmt: skip
        assert row["prompt_text"] == chat_format.decode(trajectory.prompt_ids)
        texts = [turn["text"] if turn["kind"] == "tool" else "".join(turn["pieces"]) for turn in row["body"]["turns"]]
        assert texts == [chat_format.decode(segment.token_ids) for segment in trajectory.segments]
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
        path.name for path in analysed.analysis.iterdir()
    }


def test_analyse_metrics_equal_tracked_metrics(analysed: JobState) -> None:
    """The metrics of a step equal those that the orchestrator tracks."""
    [first, *_] = json.loads((analysed.analysis / pages.SUMMARY).read_text())["files"]
    rows = trajectory_store.read(trajectory_store.step_path(analysed.stage("rl-1").trajectories, 1))
    assert first["metrics"] == step_metrics([rows[:4], rows[4:]], {}, {})
    assert step_metrics([[without_tokens(row) for row in rows]], {}, {}) == step_metrics([rows], {}, {})


@pytest.mark.parametrize(("sampled", "scored_at"), [(0.7, 0.7), (0.0, 1.0)])
def test_analyse_with_score_adds_entropies(
    filled: JobState, model_folder: Path, sampled: float, scored_at: float
) -> None:
    """Entropies of a stage's evaluation, at its sampling temperature."""
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
    assert entropy["logprob_gap"] > 1, "no model sampled these log-probabilities"
    scored = [row for row in table(filled.analysis) if row["entropy"] is not None]
    assert len(scored) == 1 and 0 < entropy["kinds"]["all"]["mean"] == pytest.approx(scored[0]["entropy"], abs=1e-4)
    assert scored[0]["body"]["high"]["entropy"] != []


def test_analyse_of_same_trajectories_writes_same_bytes(analysed: JobState, tmp_path: Path) -> None:
    """The pages depend on the trajectories only."""
    assert run(analysed, "--out", str(tmp_path / "second")) == 0
    folders = (analysed.analysis, tmp_path / "second")
    first, second = ({path.relative_to(out): path.read_bytes() for path in out.rglob("*.*")} for out in folders)
    assert first == second and len(first) > 8


def test_analyse_with_limit_shows_some_groups(filled: JobState) -> None:
    """`--limit` restricts the viewer, but not the figures."""
    assert run(filled, "--stage", "rl-1", "--limit", "6") == 0
    rows = table(filled.analysis)
    assert len(rows) == 6 and {row["set"] for row in rows} == {"training", "evaluation"}
    assert json.loads((filled.analysis / pages.SUMMARY).read_text())["trajectories"] == 18


class Tags(HTMLParser):
    """All tags of a page with their attributes, and its text."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_pages_do_not_run_texts_of_models(analysed: JobState) -> None:
    """Texts of models are JSON without `<` in the data files, escaped in the report, and text nodes in the viewer."""
    [row] = [row for row in table(analysed.analysis) if row["stage"] == "rl-2"]
    assert row["prompt"] == row["slice"] == row["reason"] == row["body"]["gold"] == HOSTILE
    assert HOSTILE in "".join(row["body"]["turns"][-1]["pieces"])
    for file in (analysed.analysis / "data").iterdir():
        assert "<" not in file.read_text(encoding="utf-8"), file.name
    report = Tags(analysed.analysis / "index.html")
    assert HOSTILE in report.text
    viewer = Tags(analysed.analysis / "viewer.html")
    scripts = [attributes for tag, attributes in report.tags + viewer.tags if tag == "script"]
    assert scripts == [{"src": "trajectory.js"}, {"src": "viewer.js"}, {"src": "data/index.js"}]
    for page in (report, viewer):
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        metas = [attributes for tag, attributes in page.tags if tag == "meta" and "http-equiv" in attributes]
        [policy] = [attributes["content"] or "" for attributes in metas]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        links = [attributes.get("src") or attributes.get("href") or "" for _, attributes in page.tags]
        assert not [link for link in links if ":" in link or link.startswith("//")], "all files are next to the page"
    for script in (*analysed.analysis.glob("*.js"), Path(live.__file__).parent / "live.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|srcdoc", text)


def test_analyse_replaces_older_analysis_atomically(filled: JobState, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed analysis leaves the older one unchanged, and a complete one replaces it."""
    assert run(filled, "--stage", "rl-1") == 0
    assert "18 trajectories, 18 of them in the viewer" in capsys.readouterr().out
    (filled.analysis / "left-over").touch()
    before = {path.name for path in filled.analysis.rglob("*")}
    torn = trajectory_store.step_path(filled.stage("rl-1").trajectories, 2)
    complete = torn.read_bytes()
    torn.write_bytes(complete[:200] + b"torn" + complete[204:])
    assert run(filled) == 1
    assert "step-000002.parquet cannot be read as trajectories" in capsys.readouterr().err
    assert {path.name for path in filled.analysis.rglob("*")} == before
    torn.write_bytes(complete)
    for number in (999999999, os.getpid()):  # the second: killed and restarted in a container, with the same id
        (filled.root / f".analysis.new.{number}").mkdir()
    assert run(filled) == 0
    assert not (filled.analysis / "left-over").exists()
    assert [path.name for path in filled.root.iterdir() if path.name.startswith(".")] == []


def test_analyse_into_other_folder_raises(filled: JobState, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not an analysis is not replaced."""
    own = tmp_path / "thesis"
    own.mkdir()
    (own / "chapter").touch()
    (own / pages.SUMMARY).touch()
    assert run(filled, "--out", str(own)) == 1
    assert "is not an analysis, so it is not replaced" in capsys.readouterr().err
    assert {path.name for path in own.iterdir()} == {"chapter", pages.SUMMARY}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stage", "rl-9"], "tiny has no stage 'rl-9'"),
        (["--score", "rl-9"], "rl-9: neither a stage of tiny (sft, rl-1, hard, rl-2, eval) nor a folder"),
        (["--score", "rl-2"], "stage rl-2 has no model yet"),
        (["--tokenizer", "/nonexistent"], "/nonexistent/tokenizer.json: cannot read the tokenizer"),
    ],
)
def test_analyse_with_invalid_option_fails(
    filled: JobState, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown stage, model or tokenizer is an error, and nothing is written."""
    assert run(filled, *options) == 1
    assert message in capsys.readouterr().err
    assert not filled.analysis.exists()


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_analyse_with_invalid_count_fails(state: JobState, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A count must be at least 1."""
    with pytest.raises(SystemExit) as end:
        run(state, f"--limit={count}")
    assert end.value.code == 2
    assert f"argument --limit: '{count}' is not an integer of at least 1" in capsys.readouterr().err


def test_analyse_without_job_or_trajectories_fails(state: JobState, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing job, a damaged job file, and a job without trajectories are errors."""
    assert run(state) == 1
    assert "contains no trajectories yet" in capsys.readouterr().err
    assert run(JobState(state.root.parent / "missing")) == 1
    assert "missing: no such job" in capsys.readouterr().err
    state.job_file.write_text("{}")
    assert run(state) == 1
    assert "job.json is damaged, or of another version of rstar2: " in capsys.readouterr().err


def test_analyse_interrupted_exits_with_130(
    state: JobState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell stops its script after 130, the code of Ctrl-C; 1 is a failure."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rstar2_train.analysis.analyse.analyse", interrupt)
    assert run(state) == 130
    assert "stopped. The pages are unchanged" in capsys.readouterr().err


def test_sampling_temperature_of_each_set(state: JobState) -> None:
    """The temperature is that of the stage or validation that sampled a file."""
    job = state.job()
    sets = [("rl-1", "training"), ("rl-1", "evaluation"), ("hard", "filter"), ("eval", "evaluation")]
    temperatures = [sampling_temperature(job, TrajectoryFile(Path("x"), stage, kind, 0)) for stage, kind in sets]  # type: ignore[arg-type]
    assert temperatures == [1.0, 0.7, 0.9, 0.6]
    job.spec.validation = None
    with pytest.raises(AnalysisError, match=r"sampled with spec\.validation"):
        sampling_temperature(job, TrajectoryFile(Path("x"), "rl-1", "evaluation", 0))


def test_axis_positions_continue_over_stages() -> None:
    """The steps of a stage follow those of the previous stage."""

    def source(stage: str, kind: str, step: int) -> TrajectoryFile:
        return TrajectoryFile(Path(f"{stage}-{step}"), stage, kind, step)  # type: ignore[arg-type]

    files = [
        source("sft", "evaluation", 0), source("rl-1", "training", 1), source("rl-1", "training", 3),
        source("rl-1", "evaluation", 0), source("hard", "filter", 1), source("rl-2", "training", 2),
    ]  # fmt: skip
    axis, stages = axis_positions(files)
    assert [axis.get(file) for file in files] == [0, 1, 3, 3, None, 5]
    assert stages == {"sft": (0, 0), "rl-1": (0, 3), "hard": (3, 3), "rl-2": (3, 5)}


def test_stage_rows_of_training_have_first_and_last() -> None:
    """A training row has the values of the first and the last step."""

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


def test_stage_rows_of_filter_have_weighted_mean() -> None:
    """A filter row has the mean over its slices, weighted by trajectories."""
    slices = [
        Point(TrajectoryFile(Path("x"), "hard", "filter", number), trajectories, {"reward/mean": reward})
        for number, trajectories, reward in ((1, 30, 0.9), (2, 10, 0.5))
    ]
    (row,) = pages.stage_rows(slices)
    assert (row["files"], row["trajectories"], row["cells"][0]) == (2, 40, "0.800")


def test_draw_plots_omits_plots_without_data(tmp_path: Path) -> None:
    """A plot without data is omitted."""
    source = TrajectoryFile(Path("x"), "a", "training", 1)
    drawn = figures.draw_plots([Point(source, 1, {"reward/mean": 0.5})], tmp_path)
    assert [plot.file for plot in drawn] == ["reward.svg"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("mode", ["Paper", "Rank", "Uniform"])
def test_reason_texts_explain_every_reason(mode: str) -> None:
    """Every reason of the selection has an explanation."""
    correct, wrong = RolloutStats(reward=1, correct=True), RolloutStats(reward=0, correct=False)
    lost = RolloutStats(reward=0, correct=False, failed=True)
    reasons = set()
    for group in ([correct] * 8, [wrong] * 8, [correct] * 4 + [wrong] * 4, [correct, lost]):
        reasons |= set(resample(group, keep=2, mode=mode, seed=0).reasons)  # type: ignore[arg-type]
    assert len(reasons) > 5 and reasons <= set(reason_texts(mode))  # type: ignore[arg-type]


def test_analyse_of_rollout_without_tokens(state: JobState, rollout: Rollout) -> None:
    """A rollout that was lost before its first token is in the viewer."""
    lost = rollout(stop="infrastructure", segments=[], calls=[], error="engine gone")
    trajectory_store.write(trajectory_store.step_path(state.stage("rl-1").trajectories, 1), [lost])
    assert run(state) == 0
    [row] = table(state.analysis)
    assert row["surprisal"] is None and row["body"]["turns"] == [] and row["body"]["error"] == "engine gone"
