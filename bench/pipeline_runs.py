"""Runs of the tiny job for the benchmarks of the pipeline: one SFT stage, one GRPO stage, one engine and one judge.

`pipeline_staleness` and `pipeline_long_tail` run their variants with these functions. All variants of a seed start from
the same SFT model. The result of each finished run is a file under `.rstar2/`, so that an interrupted benchmark resumes
with the next run. The interrupted run itself starts again, so that its figures are those of one attempt.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import ORCHESTRATOR_STOP_SECONDS, Services
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN, secret_env
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.leftovers import stop_leftovers
from rstar2_train.utils.supervisor import Child, Supervisor, gather_or_cancel

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
VARIANTS: dict[str, dict[str, Any]] = {
    "0": {"maxStaleness": 0},
    "1": {"maxStaleness": 1},
    "4": {"maxStaleness": 4},
    "4_uncorrected": {"maxStaleness": 4, "importanceCorrection": {"enabled": False}},
}


@dataclass(frozen=True)
class Size:
    """The amount of work of one form of the benchmark."""

    seeds: int
    sft_steps: int
    steps: int
    tail_steps: int
    problems: int
    samples: int


FULL = Size(seeds=5, sft_steps=1000, steps=14, tail_steps=12, problems=480, samples=2)
SHORT = Size(seeds=1, sft_steps=120, steps=6, tail_steps=6, problems=60, samples=1)


def write_job(folder: Path, *, name: str, seed: int, size: Size, grpo: dict[str, Any]) -> tuple[AgenticRLJob, JobState]:
    """Write the manifest and the job of one run: the SFT stage of examples/tiny.yaml, and one GRPO stage."""
    data = read_manifest(ROOT / "examples" / "tiny.yaml")
    data["metadata"]["name"] = name
    spec = data["spec"]
    spec["seed"] = seed
    spec["validation"] |= {"maxProblems": size.problems, "samples": size.samples}
    sft, rl = (next(stage for stage in spec["stages"] if stage["name"] == wanted) for wanted in ("sft", "rl-1"))
    sft["sft"]["epochs"] = size.sft_steps * sft["sft"]["batchSize"] / 12000
    # Equal steps: no trigger ends a run early, not even after a collapse.
    rl["grpo"] |= {"steps": size.steps, "maxResponseTokens": 72, "maxTurns": 4, "collapse": {"enabled": False}, **grpo}
    spec["stages"] = [sft, rl]
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / f"{name}.yaml"
    manifest.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    state = JobState(folder / name)
    state.root.mkdir(parents=True, exist_ok=True)
    job, _, text = preflight.read_job_and_text(manifest)
    job = preflight.resolve_sources(job, manifest=manifest, state=state)
    return preflight.write_job(job, manifest=text, state=state)[0], state


@dataclass(frozen=True)
class Machine:
    """The children of a seed's runs: one engine and one judge, which all of its runs use."""

    services: Services
    supervisor: Supervisor

    async def run_stage(
        self,
        job: AgenticRLJob,
        state: JobState,
        name: str,
        *,
        module: Sequence[str] = ("rstar2_train.orchestrator",),
    ) -> None:
        """Run one stage in a process of its own, unless it has completed. Raises RuntimeError if it fails.

        `module`: module of the orchestrator, with its first arguments.
        """
        services = self.services
        if state.stage(name).done:
            return
        attempt = preflight.next_attempt(job, state, name)
        argv = [sys.executable, "-m", *module]
        argv += ["--state", str(state.root), "--stage", name, "--attempt", str(attempt), "--judge", services.judge.url]
        for url in services.engine_urls:
            argv += ["--engine", url]
        env = secret_env(ENGINE_TOKEN, services.engine_token) | secret_env(JUDGE_TOKEN, services.judge_token)
        child = Child(f"{state.root.name}-{name}", argv, env=env, stop_seconds=ORCHESTRATOR_STOP_SECONDS)
        code = await self.supervisor.run(child)
        if code != 0:
            raise RuntimeError(
                self.supervisor.log_excerpt(child.name, f"stage {name} of {state.root} exited with {code}")
            )


async def with_services(state: JobState, job: AgenticRLJob, work: Callable[[Machine], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `work`, with one engine and one judge running.

    `state`: of a job with the same model and engine. Raises StopRequested on a stop signal, after all children stopped.
    """
    stop_leftovers(state.children_file)
    services = Services.create(job.spec.executor, state, engines=1)

    async def start_and_work() -> T:
        await gather_or_cancel(
            services.judge.start(supervisor), services.start_engines(supervisor, Path(job.spec.model.source))
        )
        return await work(Machine(services, supervisor))

    async with Supervisor(logs=state.logs, register=state.children_file, notify=print) as supervisor:
        return await supervisor.run_until_stopped(start_and_work())


def saved_result(state: JobState, size: Size) -> dict[str, Any] | None:
    """Return the result of a finished run of this size; None if the run has not finished."""
    file = _result_file(state)
    saved = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return saved["result"] if saved.get("size") == asdict(size) else None


def save_result(state: JobState, size: Size, result: dict[str, Any]) -> None:
    """Save the result of a finished run."""
    write_atomically(_result_file(state), json.dumps({"size": asdict(size), "result": result}, indent=1))


def _result_file(state: JobState) -> Path:
    return state.root / "result.json"


def clear_stage(state: JobState) -> None:
    """Delete the GRPO stage of an unfinished run, and its metrics."""
    shutil.rmtree(state.stage("rl-1").root, ignore_errors=True)
    journal_file(state.root).unlink(missing_ok=True)


def runs_folder(*, quick: bool) -> Path:
    """Return the folder of the runs of one form of the benchmark."""
    return ROOT / ".rstar2" / ("bench-pipeline-quick" if quick else "bench-pipeline")


def first_run_name(seed: int) -> str:
    """Return the name of the run that trains the SFT model of a seed."""
    return f"staleness-{seed}-0"


def start_from(first: JobState, own: JobState) -> None:
    """Give a run the SFT stage of the seed's first run, and its evaluation if it has one."""
    if own.root != first.root:
        shutil.copytree(first.root / "stages" / "sft", own.root / "stages" / "sft", dirs_exist_ok=True)


def read_metrics(state: JobState, name: str) -> list[float]:
    """Return the values of a metric of the GRPO stage, in step order."""
    values = {}
    for line in journal_file(state.root).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["kind"] == "metrics" and event["run"] == "rl-1" and name in event["values"]:
            values[event["step"]] = float(event["values"][name])
    return [values[step] for step in sorted(values)]


def pass_at_1(state: JobState, stage: str) -> float:
    """Return the held-out pass@1 of the model of a stage."""
    result = json.loads(state.stage(stage).evaluation_file.read_text(encoding="utf-8"))
    return float(result["pass_at_1"])
