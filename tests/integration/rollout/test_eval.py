"""`rstar2 eval` with a real engine and judge: killed in the middle and run again; a benchmark of instructions."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, prepare
from rstar2_train.evaluation.benchmarks import SEED_NAME
from rstar2_train.evaluation.records import read_evaluation
from rstar2_train.evaluation.result import EvaluationResult
from rstar2_train.inference.pool import EnginePool
from rstar2_train.judge.local import LocalJudge
from rstar2_train.rollout import trajectory_store
from tests.support.engine import QUESTION, RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import (
    GOLD,
    HELD,
    SAMPLES,
    Relay,
    drive,
    finish,
    kept,
    kill_at,
    relaying,
    running,
    seeds,
    start,
    write_job,
    write_sums,
)

WHICH = seeds(SEED_NAME, [f"sums/{number}" for number in range(len(GOLD))])
FILES = "state/*/*/samples.jsonl"
MANIFEST: dict[str, Any] = {
    "apiVersion": "rstar2.dev/v1alpha1",
    "kind": "AgenticRLJob",
    "metadata": {"name": "sums"},
    "spec": {
        "model": {"source": "unused", "systemPrompt": SYSTEM, "promptPrefix": ""},
        "accelerator": {"vendor": "None"},
        "trainer": {"gpusPerReplica": 0},
        "executor": {"replicas": 1, "isolation": "None"},  # harmless calls; the sandbox has tests of its own
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
"""Of the answer `\\boxed{42}`, in its block, all is true but the phrase at its end. The calls before have commas."""
KNOWN_PROMPT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\n" + SYSTEM + "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Adds the system message that the model knows; the prompts of the job's own would not be known to it."""


@pytest.fixture
async def relay(engine: Engine, models: Models) -> AsyncIterator[Relay]:
    """A relay before the session's engine, which serves the model that knows one conversation."""
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.update_weights(models.memorising, "known/eval")
    async with relaying(engine, WHICH) as relay:
        yield relay


async def evaluate(
    engine: Engine, url: str, folder: Path, *more: str, benchmark: str = "sums.jsonl"
) -> asyncio.subprocess.Process:
    """Start the command on the engine at `url`, or what stands before it; the judge it starts by itself."""
    return await start(
        engine, folder, "rstar2_train.cli", "eval", "--endpoint", url, "--manifest", folder / "sums.yaml",
        "--benchmark", folder / benchmark, "--state", folder / "state", "--out", folder / "out", *more,
    )  # fmt: skip


async def test_killed_in_the_middle_it_goes_on_and_asks_no_sample_twice(
    engine: Engine, relay: Relay, tmp_path: Path
) -> None:
    (tmp_path / "sums.yaml").write_text(json.dumps(MANIFEST))
    write_sums(tmp_path)
    everything = {(problem, sample) for problem, sample, _ in WHICH.values()}
    early = {(problem, sample) for problem, sample in everything if sample not in HELD}

    says = await finish(await evaluate(engine, relay.url, tmp_path, "--model", "nobody"), code=1)
    assert "serves policy, not 'nobody': give --model NAME" in says
    assert not (tmp_path / "state").exists()

    relay.holding.set()
    run = await evaluate(engine, relay.url, tmp_path)
    await kill_at(run, FILES, folder=tmp_path, samples=len(early))
    assert set(kept(tmp_path, FILES)) == early and not (tmp_path / "out").exists()
    assert {(problem, sample) for problem, sample, _ in relay.asked} == everything

    relay.holding.clear()
    relay.asked.clear()
    output = await finish(await evaluate(engine, relay.url, tmp_path))
    assert f"{len(early)} of {len(everything)} samples are there already" in output
    assert sorted(relay.asked) == sorted(one for one in WHICH.values() if one[1] in HELD)
    assert sorted(kept(tmp_path, FILES)) == sorted(everything)
    assert running(tmp_path) == []

    result = EvaluationResult.model_validate_json((tmp_path / "out" / "evaluation.json").read_text())
    figures = result.overall
    assert (figures.problems, figures.samples, figures.excluded) == (len(GOLD), len(everything), 0)
    assert (figures.pass_at_1, figures.pass_at_k) == (0.75, {2: 0.75, 4: 0.75})
    assert (figures.calls_per_sample, figures.tool_error_ratio) == (3.0, pytest.approx(1 / 3))
    assert [one.correct for one in result.problems] == [SAMPLES if gold == "42" else 0 for gold in GOLD]
    assert "sums/2" in (tmp_path / "out" / "evaluation.html").read_text()
    stored = trajectory_store.read(tmp_path / "out" / "trajectories.parquet")
    assert [(row.prompt_id, row.sample) for row in stored] == sorted(everything)
    assert len({tuple(row.response()[0]) for row in stored}) == 1  # sampled before the kill or after it: the same

    relay.asked.clear()
    await finish(await evaluate(engine, relay.url, tmp_path, "--mlflow", f"sqlite:///{tmp_path}/mlflow.db"))
    assert relay.asked == []
    again = EvaluationResult.model_validate_json((tmp_path / "out" / "evaluation.json").read_text())
    seconds = {"seconds": figures.seconds}
    assert again.overall.model_copy(update=seconds) == figures and again.problems == result.problems
    assert_tracked(f"sqlite:///{tmp_path}/mlflow.db")


async def test_a_killed_evaluate_stage_asks_no_finished_sample_again(
    engine: Engine, models: Models, relay: Relay, judge_stack: LocalJudge, tmp_path: Path
) -> None:
    """Its figures are those of the command, too."""
    manifest = copy.deepcopy(MANIFEST)
    spec = manifest["spec"]
    spec["model"]["source"] = str(models.memorising)
    spec["stages"][0]["evaluate"]["benchmarks"] = [{"name": "sums", "data": str(write_sums(tmp_path))}]
    state = write_job(manifest, tmp_path / "job")
    folder = state.stage("eval")
    everything = {(problem, sample) for problem, sample, _ in WHICH.values()}
    early = {(problem, sample) for problem, sample in everything if sample not in HELD}
    files = "stages/eval/samples/*.jsonl"

    relay.holding.set()
    run = await drive(engine, state, "eval", attempt=1, url=relay.url, judge=judge_stack.url)
    await kill_at(run, files, folder=state.root, samples=len(early))
    assert set(kept(state.root, files)) == early and not folder.evaluation_file.exists()

    relay.holding.clear()
    relay.asked.clear()
    # Samples of another model, or under other settings, lie beside them: they are not taken.
    (there,) = state.root.glob(files)
    (there.with_name("0123456789abcdef.jsonl")).write_text(there.read_text().replace('"correct"', '"wrong"'))
    await finish(await drive(engine, state, "eval", attempt=2, url=relay.url, judge=judge_stack.url))
    assert sorted(relay.asked) == sorted(one for one in WHICH.values() if one[1] in HELD)
    found = read_evaluation(folder.evaluation_file)
    assert (found.attempt, found.problems, found.samples, found.excluded) == (2, len(GOLD), len(everything), 0)
    assert (found.pass_at_1, found.pass_at_k) == (0.75, {2: 0.75, 4: 0.75})
    assert found.benchmarks["sums"].pass_at_1 == 0.75
    rows = trajectory_store.read(folder.evaluation_trajectories)
    assert [(row.prompt_id, row.sample) for row in rows] == sorted(everything)
    assert folder.done and not folder.samples.exists()


async def test_a_benchmark_of_instructions_is_asked_in_its_own_words_and_scored_by_them(
    engine: Engine, models: Models, tmp_path: Path
) -> None:
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.update_weights(models.memorising, "known/instructions")
    (tmp_path / "published.jsonl").write_text("".join(json.dumps(row) + "\n" for row in IFEVAL))
    prepared = prepare([DatasetSource(LAYOUTS["ifeval"], (tmp_path / "published.jsonl",))], out=tmp_path / "data")
    prepared.file.rename(tmp_path / "ifeval.jsonl")
    (tmp_path / "known.jinja").write_text(KNOWN_PROMPT)
    job = copy.deepcopy(MANIFEST)
    job["spec"]["model"] = {"source": "unused", "promptPrefix": "Box it, ", "chatTemplate": "known.jinja"}
    (tmp_path / "sums.yaml").write_text(json.dumps(job))

    printed = await finish(await evaluate(engine, engine.url, tmp_path, benchmark="ifeval.jsonl"))
    assert "instructions followed" in printed
    result = EvaluationResult.model_validate_json((tmp_path / "out" / "evaluation.json").read_text())
    figures = result.overall.instructions
    assert figures is not None and result.overall.samples == 2 * SAMPLES
    assert (figures.prompts, figures.prompt_strict, figures.prompt_loose) == (2, 0.5, 0.5)
    assert (figures.instructions, figures.instruction_strict) == (5, pytest.approx(4 / 5))
    assert result.overall.pass_at_1 == 0.5 and result.overall.calls_per_sample == 3.0
    assert [one.answers for one in result.problems] == [{"strict, strict, strict": SAMPLES}, {"no, strict": SAMPLES}]
    assert "punctuation:no_comma" in (tmp_path / "out" / "evaluation.html").read_text()

    printed = await finish(await evaluate(engine, engine.url, tmp_path, benchmark="ifeval.jsonl"))
    assert f"{2 * SAMPLES} of {2 * SAMPLES} samples are there already" in printed
    again = EvaluationResult.model_validate_json((tmp_path / "out" / "evaluation.json").read_text())
    assert again.problems == result.problems


def assert_tracked(uri: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("rstar2")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["evaluation/pass_at_1"] == run.data.metrics["sums/pass_at_1"] == 0.75
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"evaluation.json", "evaluation.html", "trajectories.parquet"}
