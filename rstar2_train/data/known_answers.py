"""Finds known answers that the verifier cannot compare by type, or only with a guess: warnings before a job starts.

`rstar2 validate` checks the files of a job, `rstar2 data inspect` one file. `rstar2_verify.known` reads the answers.
"""

from __future__ import annotations

from pathlib import Path

from rstar2_verify.known import known_fault

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import sources
from rstar2_train.data.problems import read_problems
from rstar2_train.data.readers import DataError
from rstar2_train.rewards.answer_forms import form_of
from rstar2_train.rewards.task_rewards import TaskRewards
from rstar2_train.rewards.verify import canonical_number
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.utils.text import short_repr


def answer_fault(answer: str) -> str | None:
    """Return the answer and why its type or meaning is unclear; None for a clear one, and for an `AnswerForm`."""
    if form_of(answer) is not None or canonical_number(answer) is not None:
        return None
    fault = known_fault(answer)
    return f"answer {short_repr(answer)}: {fault}" if fault else None


def find_unclear_answers(job: AgenticRLJob) -> dict[str, list[str]]:
    """Return field -> `row ID: fault` of the unclear answers that the reward Math compares.

    The sources must be paths. Invalid files are left out: they have errors of their own (`sources.find_invalid_files`).
    """
    if job.spec.environments and not job.spec.rewards:
        return {}
    unclear: dict[str, list[str]] = {}
    try:
        rewards = TaskRewards(job.spec.rewards)
    except SourceError:
        return {}
    for source in sources(job):
        if source.holds != "problems":
            continue
        try:
            faults = [
                f"row {problem.id}: {fault}"
                for problem in read_problems(Path(source.value))
                if rewards.rule(problem.reward).type == "Math" and (fault := answer_fault(problem.answer))
            ]
        except (DataError, ValueError):
            continue
        if faults:
            unclear[source.field] = faults
    return unclear
