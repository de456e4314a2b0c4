"""`rstar2 filter` beside a job's Filter stage, with a real engine and judge: same samples, same problems kept."""

import asyncio
import json
from pathlib import Path
from typing import Any

from rstar2_train.evaluation.difficulty import SEED_NAME, FilterReport
from rstar2_train.judge.local import LocalJudge
from tests.support.engine import RESPONSE_TOKENS, SYSTEM, Engine
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

WHICH = seeds(SEED_NAME, [str(number) for number in range(len(GOLD))])
CUT = {("1", 0), ("1", 3), ("3", 2)}
SOLVED = [4, 2, 0, 3]
"""How often each problem is solved: the third has the wrong answer in the file, samples in CUT are stopped early."""
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
            "executor": {"replicas": 1, "isolation": "None"},  # harmless calls; the sandbox has tests of its own
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


async def filtered(
    engine: Engine, judge: LocalJudge, relay: Relay, file: Path, *more: str
) -> asyncio.subprocess.Process:
    """Start the command."""
    folder = file.parent
    return await start(
        engine, folder, "rstar2_train.cli", "filter", file, "--endpoint", relay.url, "--judge", judge.url,
        "--manifest", folder / "sums.yaml", "--state", folder / "state", "--out", folder / "kept.jsonl", *more,
    )  # fmt: skip


async def test_the_command_keeps_what_the_stage_keeps_and_asks_no_sample_twice(
    engine: Engine, models: Models, judge_stack: LocalJudge, tmp_path: Path
) -> None:
    file = write_sums(tmp_path)
    job = manifest(models, file)
    (tmp_path / "sums.yaml").write_text(json.dumps(job))
    state = write_job(job, tmp_path / "job")
    async with relaying(engine, WHICH) as relay:
        relay.cut = CUT
        await finish(await drive(engine, state, "hard", attempt=1, url=relay.url, judge=judge_stack.url))
        by_stage = state.stage("hard").kept_file.read_bytes()
        assert [json.loads(line)["id"] for line in by_stage.splitlines()] == ["1", "2"]
        asked = sorted(relay.asked)
        assert {(problem, sample) for problem, sample, _ in asked} == {one[:2] for one in WHICH.values()}

        relay.asked.clear()
        relay.holding.set()
        run = await filtered(engine, judge_stack, relay, file)
        early = [one for one in WHICH.values() if one[1] not in HELD]
        await kill_at(run, FILES, folder=tmp_path, samples=len(GOLD) * (SAMPLES - len(HELD)))
        assert not (tmp_path / "kept.jsonl").exists()
        first = [one for one in relay.asked if one[1] not in HELD]
        assert sorted(first) == sorted(one for one in early if one in asked)

        relay.holding.clear()
        relay.asked.clear()
        output = await finish(await filtered(engine, judge_stack, relay, file))
        assert sorted(first + relay.asked) == asked, "asked what the stage asked, with its seeds, and each once"
        assert "8 of 16 samples are there already" in output
        assert (tmp_path / "kept.jsonl").read_bytes() == by_stage
        assert sorted(kept(tmp_path, FILES)) == sorted({one[:2] for one in WHICH.values()})
        report = FilterReport.model_validate_json((tmp_path / "kept.report.json").read_text())
        assert [(one.solved, one.valid) for one in report.counts] == [(solved, SAMPLES) for solved in SOLVED]
        assert (report.kept, report.dropped, report.excluded) == (2, 2, 0)
        assert report.histogram == {0: 1, 1: 0, 2: 1, 3: 1, 4: 1}
        assert "2 of 4 problems kept, 2 dropped" in output and f"grpo: {{data: {tmp_path}/kept.jsonl}}" in output

        relay.asked.clear()
        await finish(await filtered(engine, judge_stack, relay, file, "--drop-solved", "4"))
        assert relay.asked == []
        again = [json.loads(line)["id"] for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
        assert again == ["1", "2", "3"]

        before = (tmp_path / "kept.jsonl").read_bytes()
        write_sums(tmp_path, golds=GOLD[:1])  # alone the problem that is always solved
        output = await finish(await filtered(engine, judge_stack, relay, file), code=1)
        assert "every problem was solved 3 times or more, and nothing was written: give harder problems" in output
        assert relay.asked == [] and (tmp_path / "kept.jsonl").read_bytes() == before
        assert running(tmp_path) == []
