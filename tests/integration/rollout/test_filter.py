"""`rstar2 filter` and a Filter stage with a real engine and judge: the same samples, the same kept problems."""

import asyncio
import json
from pathlib import Path
from typing import Any

from rstar2_train.evaluation.difficulty import SEED_NAME, FilterReport
from tests.support.engine import RESPONSE_TOKENS, SYSTEM, Engine
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
from tests.support.unsupervised_judge import UnsupervisedJudge

TURNS = turns_by_seed(SEED_NAME, [str(number) for number in range(len(GOLD))])
TRUNCATED = {("1", 0), ("1", 3), ("3", 2)}
SOLVED = [4, 2, 0, 3]
"""Correct samples per problem: the file has a wrong answer for the third; TRUNCATED samples are wrong."""
DROP = 3
FILES = "state/*/*/samples.jsonl"


def manifest(models: Models, problems: Path) -> dict[str, Any]:
    return {
        "apiVersion": "rstar2.dev/v1alpha1",
        "kind": "AgenticRLJob",
        "metadata": {"name": "sums"},
        "spec": {
            "model": {"source": str(models.memorising), "systemPrompt": SYSTEM, "promptPrefix": ""},
            "accelerator": {"vendor": "None"},
            "trainer": {"gpusPerReplica": 0},
            "executor": {"replicas": 1, "isolation": "None"},  # harmless calls; the sandbox has its own tests
            "stages": [
                {
                    "name": "hard",
                    "type": "Filter",
                    "filter": {
                        "data": str(problems),
                        "samples": SAMPLES,
                        "dropSolved": DROP,
                        "sampling": {"temperature": 0, "maxResponseTokens": RESPONSE_TOKENS, "maxTurns": 4},
                    },
                }
            ],
        },
    }


async def start_filter(
    engine: Engine, judge: UnsupervisedJudge, proxy: EngineProxy, file: Path, *more: str
) -> asyncio.subprocess.Process:
    """Start the command."""
    folder = file.parent
    return await start(
        engine, folder, "rstar2_train.cli", "filter", file, "--endpoint", proxy.url, "--judge", judge.url,
        "--manifest", folder / "sums.yaml", "--state", folder / "state", "--out", folder / "kept.jsonl", *more,
    )  # fmt: skip


async def test_filter_command_equals_the_filter_stage(
    engine: Engine, models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """The command keeps the same problems as the stage, with the same seeds, and resumes after a SIGKILL."""
    file = write_sums(tmp_path)
    job = manifest(models, file)
    (tmp_path / "sums.yaml").write_text(json.dumps(job))
    state = write_job(job, tmp_path / "job")
    async with proxied(engine, TURNS) as proxy:
        proxy.truncated = TRUNCATED
        await finish(await start_attempt(engine, state, "hard", attempt=1, url=proxy.url, judge=judge_stack.url))
        by_stage = state.stage("hard").kept_file.read_bytes()
        assert [json.loads(line)["id"] for line in by_stage.splitlines()] == ["1", "2"]
        requests = sorted(proxy.requests)
        assert {(problem, sample) for problem, sample, _ in requests} == {turn[:2] for turn in TURNS.values()}

        proxy.requests.clear()
        proxy.holding.set()
        run = await start_filter(engine, judge_stack, proxy, file)
        early = [turn for turn in TURNS.values() if turn[1] not in HELD]
        await kill_at(run, FILES, folder=tmp_path, samples=len(GOLD) * (SAMPLES - len(HELD)))
        assert not (tmp_path / "kept.jsonl").exists()
        first = [turn for turn in proxy.requests if turn[1] not in HELD]
        assert sorted(first) == sorted(turn for turn in early if turn in requests)

        proxy.holding.clear()
        proxy.requests.clear()
        output = await finish(await start_filter(engine, judge_stack, proxy, file))
        assert sorted(first + proxy.requests) == requests, (
            "the command sent the stage's requests, with its seeds, each once"
        )
        assert "Resuming: 8 of 16 samples already done" in output
        assert (tmp_path / "kept.jsonl").read_bytes() == by_stage
        assert sorted(saved(tmp_path, FILES)) == sorted({turn[:2] for turn in TURNS.values()})
        report = FilterReport.model_validate_json((tmp_path / "kept.report.json").read_text())
        assert [(count.solved, count.valid) for count in report.counts] == [(solved, SAMPLES) for solved in SOLVED]
        assert (report.kept, report.dropped, report.excluded) == (2, 2, 0)
        assert report.histogram == {0: 1, 1: 0, 2: 1, 3: 1, 4: 1}
        assert "2 of 4 problems kept, 2 dropped" in output and f"grpo: {{data: {tmp_path}/kept.jsonl}}" in output

        proxy.requests.clear()
        await finish(await start_filter(engine, judge_stack, proxy, file, "--drop-solved", "4"))
        assert proxy.requests == []
        again = [json.loads(line)["id"] for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
        assert again == ["1", "2", "3"]

        before = (tmp_path / "kept.jsonl").read_bytes()
        write_sums(tmp_path, golds=GOLD[:1])  # only the problem that is always solved
        output = await finish(await start_filter(engine, judge_stack, proxy, file), code=1)
        assert "every problem has 3 or more correct samples, so no file was written" in output
        assert proxy.requests == [] and (tmp_path / "kept.jsonl").read_bytes() == before
        assert running(tmp_path) == []
