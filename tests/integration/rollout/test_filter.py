"""`rstar2 filter` with a real engine and judge: a signal and a second run, other thresholds, and a reused sample."""

import asyncio
import json
from pathlib import Path
from typing import Any

from rstar2_train.api.contracts import ExitCode
from rstar2_train.evaluation.difficulty import SEED_NAME, FilterReport
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from tests.support.engine import RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import (
    GOLD,
    HELD,
    SAMPLES,
    EngineProxy,
    finish,
    proxied,
    running,
    saved,
    start,
    stop_at,
    turns_by_seed,
    write_sums,
)
from tests.support.unsupervised_judge import UnsupervisedJudge

TURNS = turns_by_seed(SEED_NAME, [str(number) for number in range(len(GOLD))])
TRUNCATED = {("1", 0), ("1", 3), ("3", 2)}
SOLVED = [4, 2, 0, 3]
"""Correct samples per problem: the file has a wrong answer for the third; TRUNCATED samples are wrong."""
DROP = 3
FILES = "state/*/*/stages/filter/samples/*.jsonl"


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


async def test_filter_stopped_resumes_with_missing_samples(
    engine: Engine, models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """A signal stops the command with exit code 75; the next run samples the rest, and later ones nothing."""
    file = write_sums(tmp_path)
    (tmp_path / "sums.yaml").write_text(json.dumps(manifest(models, file)))
    async with EnginePool([engine.url], token=engine.token) as pool:
        await pool.push(FolderUpdate.make(models.memorising, "known/filter"))
    async with proxied(engine, TURNS) as proxy:
        proxy.truncated = TRUNCATED
        proxy.holding.set()
        run = await start_filter(engine, judge_stack, proxy, file)
        await stop_at(run, FILES, folder=tmp_path, samples=len(GOLD) * (SAMPLES - len(HELD)))
        assert "run the same command to resume" in await finish(run, code=ExitCode.SUSPENDED)
        assert not (tmp_path / "kept.jsonl").exists() and running(tmp_path) == []
        first = {turn[:2] for turn in proxy.requests if turn[1] not in HELD}

        proxy.holding.clear()
        proxy.requests.clear()
        output = await finish(await start_filter(engine, judge_stack, proxy, file))
        assert {turn[:2] for turn in proxy.requests} == {turn[:2] for turn in TURNS.values()} - first
        assert "Resuming: 8 of 16 samples already done" in output
        assert sorted(saved(tmp_path, FILES)) == sorted({turn[:2] for turn in TURNS.values()})
        report = FilterReport.model_validate_json((tmp_path / "kept.report.json").read_text())
        assert [(count.solved, count.valid) for count in report.counts] == [(solved, SAMPLES) for solved in SOLVED]
        assert (report.kept, report.dropped, report.excluded) == (2, 2, 0)
        assert report.histogram == {0: 1, 1: 0, 2: 1, 3: 1, 4: 1}
        assert "2 of 4 problems kept, 2 dropped" in output and f"grpo: {{data: {tmp_path}/kept.jsonl}}" in output
        assert kept_ids(tmp_path) == ["1", "2"]

        proxy.requests.clear()
        await finish(await start_filter(engine, judge_stack, proxy, file, "--drop-solved", "4"))
        assert proxy.requests == [] and kept_ids(tmp_path) == ["1", "2", "3"]

        before = (tmp_path / "kept.jsonl").read_bytes()
        write_sums(tmp_path, golds=GOLD[:1])  # only the problem that is always solved
        output = await finish(await start_filter(engine, judge_stack, proxy, file), code=1)
        assert "every problem has 3 or more correct samples, so no file was written" in output
        assert proxy.requests == [] and (tmp_path / "kept.jsonl").read_bytes() == before
        assert running(tmp_path) == []


def kept_ids(folder: Path) -> list[str]:
    return [json.loads(line)["id"] for line in (folder / "kept.jsonl").read_text().splitlines()]
