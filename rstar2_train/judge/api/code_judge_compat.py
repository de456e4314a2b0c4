"""Routes for clients of `code-judge`, the judge of the paper's public code: the same paths, requests and answers.

Beside the routes of `api`, in front of the same `intake`. A submission is a script, so the value of its last line is
not shown. `math` and `cpp` are not run here: `invalid_input` says so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, Field

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.api.admission import CallAdmission
from rstar2_train.judge.api.schema import BAD_BODY, NO_REDIS, TOO_MANY
from rstar2_train.judge.types import CallResult

SHOWN = 1000
"""Characters of stdout and of stderr in an answer: code-judge's default. Outputs are compared before the cut."""

Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
REASONS: dict[str, Reason] = {
    "timeout": "worker_timeout",
    "invalid": "invalid_input",
    # Nobody ran it, so another try may help, and `queue_timeout` is the one reason for which those clients make one.
    "internal": "queue_timeout",
}


def _text(value: str) -> str:
    value.encode()  # half a surrogate pair cannot be sent back
    return value


Name = Annotated[str, AfterValidator(_text)]
"""Comes back in the answer."""


class Submission(BaseModel):
    """One program."""

    sub_id: Name | None = None
    type: Literal["python", "cpp", "math"]
    options: dict[str, str] | None = None
    solution: str
    """The program."""
    input: str | None = None
    """Its standard input."""
    expected_output: str | None = None
    """What it must print to be a success, space around it aside."""


class BatchSubmission(BaseModel):
    """Several programs, answered together."""

    sub_id: Name | None = None
    type: Literal["batch"] = "batch"
    submissions: Annotated[list[Submission], Field(min_length=1)]


class JudgeResult(BaseModel):
    """A verdict."""

    sub_id: str
    success: bool
    """It ended well and printed what was expected."""
    run_success: bool
    """It ended with exit status 0."""
    cost: float
    """Seconds that it ran."""
    reason: Reason = ""


class SubmissionResult(JudgeResult):
    """A verdict with what was printed."""

    stdout: str | None = None
    stderr: str | None = None


class BatchResult(BaseModel):
    """Results in the order of the submissions."""

    sub_id: str
    results: list[SubmissionResult]


class BatchJudgeResult(BaseModel):
    """Verdicts in the order of the submissions."""

    sub_id: str
    results: list[JudgeResult]


class ServerStatus(BaseModel):
    """How busy the judge is. Nothing more: those clients make an object of exactly these fields."""

    queue: int
    """Calls that wait or run."""
    num_workers: int
    """Sandboxes that take calls."""


def to_submission_result(submission: Submission, result: CallResult) -> SubmissionResult:
    """Our result in code-judge's words. Pure."""
    run_success = result.status == "ok"
    expected = submission.expected_output
    notes = {"memory": "out of memory\n", "output_limit": "too much output\n", "killed": "killed\n"}
    return SubmissionResult(
        sub_id=submission.sub_id or str(uuid.uuid4()),
        success=run_success and (expected is None or result.stdout.strip() == expected.strip()),
        run_success=run_success,
        cost=result.run_seconds,
        stdout=result.stdout[:SHOWN],
        stderr=(result.stderr or notes.get(result.status, ""))[:SHOWN],
        reason=REASONS.get(result.status, ""),
    )


def as_script(program: str) -> str:
    """The program, ended by a statement that shows nothing: ours shows the value of a last expression.

    The judge cannot parse what it was sent to do this better. A program that breaks off after a backslash is told of
    an error beside that statement.
    """
    return f"{program}\npass\n"


def router(intake: Callable[[], CallAdmission]) -> APIRouter:
    """The routes. `intake` is asked for at each request: it exists once the application has started."""
    routes = APIRouter(tags=["code-judge"])

    async def run_one(submission: Submission) -> SubmissionResult:
        if submission.type != "python":
            result = CallResult("invalid", stderr=f"this judge runs python, not {submission.type}\n")
        else:
            result = await intake().run(as_script(submission.solution), submission.input or "", JudgeLimits())
        return to_submission_result(submission, result)

    async def run(submission: Submission) -> Any:
        intake().admit(1)
        return await run_one(submission)

    async def run_batch(batch: BatchSubmission) -> Any:
        intake().admit(len(batch.submissions))
        results = await asyncio.gather(*map(run_one, batch.submissions))
        return {"sub_id": batch.sub_id or str(uuid.uuid4()), "results": results}

    @routes.get("/status", responses=NO_REDIS)
    async def status() -> ServerStatus:
        """How busy the judge is."""
        found = await intake().status()
        return ServerStatus(queue=found["queued"], num_workers=found["executors"]["ready"])

    def add(path: str, route: Callable[..., Awaitable[Any]], answer: type[BaseModel], summary: str) -> None:
        refusals = BAD_BODY if route is run else BAD_BODY | TOO_MANY
        routes.add_api_route(path, route, methods=["POST"], response_model=answer, summary=summary, responses=refusals)

    add("/run", run, SubmissionResult, "Runs a program")
    add("/judge", run, JudgeResult, "Runs a program, answers with the verdict alone")
    for name in ("batch", "long-batch"):
        add(f"/run/{name}", run_batch, BatchResult, "Runs programs")
        add(f"/judge/{name}", run_batch, BatchJudgeResult, "Runs programs, answers with the verdicts alone")
    return routes
