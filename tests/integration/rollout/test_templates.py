"""`rstar2 eval` of a tiny model on the folders of `rstar2 init`: tools, files and rewards with a real engine."""

import json
from pathlib import Path

import pytest
import yaml

from rstar2_train.cli.main import main
from rstar2_train.data.task_templates import write_template
from rstar2_train.evaluation.result import EvaluationResult
from rstar2_train.inference.pool import EnginePool
from tests.support.engine import QUESTION, RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.unsupervised_judge import UnsupervisedJudge


@pytest.fixture
async def known_engine(engine: Engine, models: Models, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine with the model that answers QUESTION: three Python calls, one of them malformed, then 42."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.update_weights(models.memorising, "known/templates")
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
    result = EvaluationResult.model_validate_json((tmp_path / "evaluation.json").read_text())
    assert [problem.correct for problem in result.problems] == correct
    assert result.overall.calls_per_sample == 3.0
    assert result.overall.tool_error_ratio == pytest.approx(error_ratio)
