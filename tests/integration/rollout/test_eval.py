"""`rstar2 eval` with a real engine and judge: a kill and a second run; benchmarks of instructions and of calls."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.data import task_templates
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, prepare
from rstar2_train.evaluation.benchmarks import SEED_NAME
from rstar2_train.evaluation.records import read_evaluation
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.rollout import trajectory_store
from tests.support.engine import QUESTION, RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import (
    GOLD,
    HELD,
    SAMPLES,
    EngineProxy,
    finish,
    kill_at,
    proxied,
    running,
    saved,
    start,
    start_attempt,
    turns_by_seed,
    write_job,
    write_sums,
)
from tests.support.token_arrays import response
from tests.support.unsupervised_judge import UnsupervisedJudge

TURNS = turns_by_seed(SEED_NAME, [f"sums/{number}" for number in range(len(GOLD))])
FILES = "state/*/*/stages/eval/samples/*.jsonl"
MANIFEST: dict[str, Any] = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "model": {"source": "unused", "systemPrompt": SYSTEM, "promptPrefix": ""},
        "accelerator": {"vendor": "None"},
        "trainer": {"gpusPerReplica": 0},
        "executor": {"replicas": 1, "isolation": "None"},  # harmless calls; the sandbox has its own tests
        "stages": [
            {
                "name": "eval",
                "type": "Evaluate",
                "evaluate": {
                    "benchmarks": [{"name": "other", "data": "unused.jsonl"}],
                    "samples": SAMPLES,
                    "sampling": {"temperature": 0, "maxResponseTokens": RESPONSE_TOKENS, "maxTurns": 4},
                },
            }
        ],
    },
}


IFEVAL = [
    {
        "key": 1,
        "prompt": QUESTION,
        "instruction_id_list": ["punctuation:no_comma", "keywords:existence", "length_constraints:number_words"],
        "kwargs": [{}, {"keywords": ["boxed"]}, {"relation": "less than", "num_words": 3}],
    },
    {
        "key": 2,
        "prompt": QUESTION,
        "instruction_id_list": ["startend:end_checker", "punctuation:no_comma"],
        "kwargs": [{"end_phrase": "</answer>"}, {}],
    },
]
"""The answer `\\boxed{42}` in its block follows all but the instruction on the end phrase. The tool calls have
commas."""
KNOWN_PROMPT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Adds the system message that the model was trained with; it does not know the job's own prompts."""
FUNCTIONS_FIRST = (
    "{% for message in messages %}{% if loop.index0 == 1 %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Adds the system message that the model was trained with after that with the functions of a row."""


@pytest.fixture
async def proxy(engine: Engine, models: Models) -> AsyncIterator[EngineProxy]:
    """A proxy in front of the engine, which serves the memorising model."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/eval"))
    async with proxied(engine, TURNS) as proxy:
        yield proxy


async def evaluate(
    engine: Engine, url: str, judge: UnsupervisedJudge, folder: Path, *more: str, benchmark: str = "sums.jsonl"
) -> asyncio.subprocess.Process:
    """Start the command with the engine or proxy at `url`."""
    return await start(
        engine, folder, "rstar2_train.cli", "eval", "--endpoint", url, "--judge", judge.url,
        "--manifest", folder / "sums.yaml", "--benchmark", folder / benchmark, "--state", folder / "state",
        "--out", folder / "out", *more,
    )  # fmt: skip


async def test_eval_killed_resumes_with_missing_samples(
    engine: Engine, proxy: EngineProxy, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """After a SIGKILL the same command generates only the missing samples; a third run starts no process."""
    (tmp_path / "sums.yaml").write_text(json.dumps(MANIFEST))
    write_sums(tmp_path)
    everything = {(problem, sample) for problem, sample, _ in TURNS.values()}
    early = {(problem, sample) for problem, sample in everything if sample not in HELD}

    proxy.holding.set()
    run = await evaluate(engine, proxy.url, judge_stack, tmp_path)
    await kill_at(run, FILES, folder=tmp_path, samples=len(early))
    assert set(saved(tmp_path, FILES)) == early and not list(tmp_path.glob("out/*"))
    assert {(problem, sample) for problem, sample, _ in proxy.requests} == everything

    proxy.holding.clear()
    proxy.requests.clear()
    output = await finish(await evaluate(engine, proxy.url, judge_stack, tmp_path))
    assert f"Resuming: {len(early)} of {len(everything)} samples already done" in output
    assert sorted(proxy.requests) == sorted(turn for turn in TURNS.values() if turn[1] in HELD)
    assert sorted(saved(tmp_path, FILES)) == sorted(everything)
    assert running(tmp_path) == []

    result = read_evaluation(tmp_path / "out" / "evaluation.json")
    assert (result.stage, result.model, result.endpoint) == ("eval", "policy", proxy.url)
    assert (result.problems, result.samples, result.excluded) == (len(GOLD), len(everything), 0)
    assert (result.pass_at_1, result.pass_at_k) == (0.75, {2: 0.75, 4: 0.75})
    assert (result.calls_per_sample, result.tool_error_ratio) == (3.0, pytest.approx(1 / 3))
    assert [problem.correct for problem in result.problem_results] == [SAMPLES if gold == "42" else 0 for gold in GOLD]
    assert "sums/2" in (tmp_path / "out" / "evaluation.html").read_text()
    stored = trajectory_store.read(tmp_path / "out" / "trajectories.parquet")
    assert [(row.prompt_id, row.sample) for row in stored] == sorted(everything)
    assert len({tuple(response(row)[0]) for row in stored}) == 1  # the same before and after the kill

    proxy.requests.clear()
    logs = sorted(tmp_path.glob("state/*/*/logs/*"))
    await finish(
        await evaluate(engine, proxy.url, judge_stack, tmp_path, "--mlflow", f"sqlite:///{tmp_path}/mlflow.db")
    )
    assert proxy.requests == [] and sorted(tmp_path.glob("state/*/*/logs/*")) == logs
    again = read_evaluation(tmp_path / "out" / "evaluation.json")
    assert again.model_copy(update={"seconds": result.seconds, "attempt": result.attempt}) == result
    assert_tracked(f"sqlite:///{tmp_path}/mlflow.db")


async def test_evaluate_stage_has_the_samples_of_the_command(
    engine: Engine, models: Models, proxy: EngineProxy, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """A stage on engines of its job sends the same requests, and removes its samples at its end."""
    manifest = copy.deepcopy(MANIFEST)
    spec = manifest["spec"]
    spec["model"]["source"] = str(models.memorising)
    spec["rollout"] = {"engineArgs": {"max-model-len": 64 + RESPONSE_TOKENS}}  # those of the engine
    spec["stages"][0]["evaluate"]["benchmarks"] = [{"name": "sums", "data": str(write_sums(tmp_path))}]
    state = write_job(manifest, tmp_path / "job")
    folder = state.stage("eval")
    await finish(await start_attempt(engine, state, "eval", attempt=2, url=proxy.url, judge=judge_stack.url))
    assert sorted(proxy.requests) == sorted(TURNS.values())
    evaluation = read_evaluation(folder.evaluation_file)
    assert (evaluation.attempt, evaluation.problems, evaluation.excluded) == (2, len(GOLD), 0)
    assert (evaluation.pass_at_1, evaluation.pass_at_k) == (0.75, {2: 0.75, 4: 0.75})
    assert evaluation.benchmarks["sums"].pass_at_1 == 0.75 and evaluation.endpoint is None
    assert "sums/2" in folder.evaluation_page.read_text()
    rows = trajectory_store.read(folder.evaluation_trajectories)
    assert [(row.prompt_id, row.sample) for row in rows] == sorted({turn[:2] for turn in TURNS.values()})
    assert folder.done and not folder.samples.exists()


async def test_eval_ifeval_prompts_as_is_and_scores_instructions(
    engine: Engine, models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """An IFEval prompt has no system prompt and no prefix; its instructions are the score."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/instructions"))
    (tmp_path / "published.jsonl").write_text("".join(json.dumps(row) + "\n" for row in IFEVAL))
    prepared = prepare([DatasetSource(LAYOUTS["ifeval"], (tmp_path / "published.jsonl",))], out=tmp_path / "data")
    prepared.file.rename(tmp_path / "ifeval.jsonl")
    (tmp_path / "known.jinja").write_text(KNOWN_PROMPT)
    job = copy.deepcopy(MANIFEST)
    job["spec"]["model"] = {"source": "unused", "promptPrefix": "Box it, ", "chatTemplate": "known.jinja"}
    (tmp_path / "sums.yaml").write_text(json.dumps(job))

    printed = await finish(await evaluate(engine, engine.url, judge_stack, tmp_path, benchmark="ifeval.jsonl"))
    assert "Instructions" in printed
    result = read_evaluation(tmp_path / "out" / "evaluation.json")
    figures = result.instructions
    assert figures is not None and result.samples == 2 * SAMPLES
    assert (figures.prompts, figures.prompt_strict, figures.prompt_loose) == (2, 0.5, 0.5)
    assert (figures.instructions, figures.instruction_strict) == (5, pytest.approx(4 / 5))
    assert result.pass_at_1 == 0.5 and result.calls_per_sample == 3.0
    assert [problem.answers for problem in result.problem_results] == [
        {"strict, strict, strict": SAMPLES},
        {"no, strict": SAMPLES},
    ]
    assert "punctuation:no_comma" in (tmp_path / "out" / "evaluation.html").read_text()

    printed = await finish(await evaluate(engine, engine.url, judge_stack, tmp_path, benchmark="ifeval.jsonl"))
    assert f"Resuming: {2 * SAMPLES} of {2 * SAMPLES} samples already done" in printed
    again = read_evaluation(tmp_path / "out" / "evaluation.json")
    assert again.problem_results == result.problem_results


async def test_eval_bfcl_reports_categories(
    engine: Engine, models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """Calls of the first turn are scored by the template's checker. One of the three calls is malformed."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/calls"))
    task_templates.write_template("calls", tmp_path / "calls")
    (tmp_path / "functions.jinja").write_text(FUNCTIONS_FIRST)
    parameters = {"type": "dict", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    function = {"name": "execute_python_code_with_standard_io", "description": "Runs.", "parameters": parameters}
    (tmp_path / "possible_answer").mkdir()
    files = []
    for category in ("simple_python", "live_relevance", "live_irrelevance"):
        file, id = tmp_path / f"BFCL_v4_{category}.json", f"{category}_0"
        item = {"id": id, "question": [[{"role": "user", "content": QUESTION}]], "function": [function]}
        file.write_text(json.dumps(item) + "\n")
        truth = {"id": id, "ground_truth": [{function["name"]: {"code": ["print(12+30)"]}}]}
        (tmp_path / "possible_answer" / file.name).write_text(json.dumps(truth) + "\n")
        files.append(file)
    prepared = prepare([DatasetSource(LAYOUTS["bfcl"], tuple(files))], out=tmp_path / "data")
    prepared.file.rename(tmp_path / "bfcl.jsonl")
    job = copy.deepcopy(MANIFEST)
    job["spec"]["model"] = {"source": "unused", "promptPrefix": "", "chatTemplate": "functions.jinja"}
    job["spec"]["rewards"] = [{"name": "calls", "type": "Program", "source": "calls/checker.py", "timeoutSeconds": 30}]
    job["spec"]["stages"][0]["evaluate"] |= {"samples": 1}
    (tmp_path / "sums.yaml").write_text(json.dumps(job))

    printed = await finish(
        await evaluate(engine, engine.url, judge_stack, tmp_path, "--max-turns", "1", benchmark="bfcl.jsonl")
    )
    assert "BFCL" in printed
    result = read_evaluation(tmp_path / "out" / "evaluation.json")
    assert result.bfcl is not None and result.excluded == 0
    accuracy = {name: each.pass_at_1 for name, each in result.bfcl.categories.items()}
    assert accuracy == {"simple_python": 0.0, "live_irrelevance": 0.0, "live_relevance": 1.0}
    assert "<h2>BFCL</h2>" in (tmp_path / "out" / "evaluation.html").read_text()


def assert_tracked(uri: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("rstar2")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["evaluation/pass_at_1"] == run.data.metrics["sums/pass_at_1"] == 0.75
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"evaluation.json", "evaluation.html", "trajectories.parquet"}
