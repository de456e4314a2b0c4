"""`rstar2 eval` of a tiny model on the folders of `rstar2 init`: tools, files and rewards with a real engine."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from rstar2_train.cli.main import main
from rstar2_train.data.task_templates import write_template
from rstar2_train.evaluation.records import read_evaluation
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from tests.support.engine import QUESTION, RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import running
from tests.support.unsupervised_judge import UnsupervisedJudge


@pytest.fixture
async def known_engine(engine: Engine, models: Models, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine with the model that answers QUESTION: three Python calls, one of them malformed, then 42."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/templates"))
    monkeypatch.setenv("RSTAR2_ENGINE_TOKEN", engine.token)
    return engine


@pytest.mark.parametrize(
    ("template", "answers", "correct", "error_ratio"),
    [("science", ["42", "42.3", "43"], [1, 1, 0], 1 / 3), ("sql", ["SELECT 42"], [0], 1.0)],
)
def test_eval_of_template_scores_by_its_reward(
    template: str,
    answers: list[str],
    correct: list[int],
    error_ratio: float,
    known_engine: Engine,
    judge_stack: UnsupervisedJudge,
    tmp_path: Path,
) -> None:
    """The template's tolerance and checker decide; a call of a tool that the template does not have is an error."""
    folder = tmp_path / "new"
    write_template(template, folder)
    manifest = yaml.safe_load((folder / "job.yaml").read_text())
    manifest["spec"]["model"]["systemPrompt"] = SYSTEM  # the tiny model knows no other
    manifest["spec"]["stages"][-1]["evaluate"]["sampling"] = {"temperature": 0, "maxResponseTokens": RESPONSE_TOKENS}
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    row = json.loads((folder / "rows.jsonl").read_text().splitlines()[0])
    rows = [row | {"id": str(at), "problem": QUESTION, "answer": answer} for at, answer in enumerate(answers)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    argv = ["eval", "--endpoint", known_engine.url, "--judge", judge_stack.url, "--manifest", folder / "job.yaml"]
    argv += ["--benchmark", folder / "rows.jsonl", "--samples", 1, "--state", tmp_path / "state", "--out", tmp_path]
    assert main(list(map(str, argv))) == 0
    result = read_evaluation(tmp_path / "evaluation.json")
    assert [problem.correct for problem in result.problem_results] == correct
    assert result.calls_per_sample == 3.0
    assert result.tool_error_ratio == pytest.approx(error_ratio)


def test_eval_starts_the_servers_of_an_environment(known_engine: Engine, tmp_path: Path) -> None:
    """An environment without a URL is started for the command, and stopped at its end. No judge is needed."""
    folder = tmp_path / "new"
    write_template("openenv", folder)
    manifest = yaml.safe_load((folder / "job.yaml").read_text())
    spec = manifest["spec"]
    del spec["environments"][0]["url"]
    spec["environments"][0]["command"] = [sys.executable, str(folder / "server.py"), "{port}"]
    spec["model"]["systemPrompt"] = SYSTEM  # the tiny model knows no other, and calls a tool that the game lacks
    spec["stages"][-1]["evaluate"]["sampling"] = {"temperature": 0, "maxResponseTokens": RESPONSE_TOKENS}
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    row = json.loads((folder / "rows.jsonl").read_text().splitlines()[0])
    (folder / "rows.jsonl").write_text(json.dumps(row | {"problem": QUESTION}) + "\n")
    argv = ["eval", "--endpoint", known_engine.url, "--manifest", folder / "job.yaml", "--samples", 1]
    argv += ["--benchmark", folder / "rows.jsonl", "--state", tmp_path / "state", "--out", tmp_path]
    assert main(list(map(str, argv))) == 0
    result = read_evaluation(tmp_path / "evaluation.json")
    assert (result.samples, result.excluded, result.calls_per_sample, result.tool_error_ratio) == (1, 0, 3.0, 1.0)
    logs = [file.name.split(".")[0] for file in tmp_path.glob("state/*/*/logs/*")]
    assert "environment-0" in logs and not [name for name in logs if "judge" in name or "engine" in name]
    assert running(tmp_path) == []
