"""Routes for clients of `code-judge`, the judge of the paper's public code: the same paths, requests and responses.

They use the same `admission` as the routes of `app`. A submission is a script: the value of its last line is not
printed, and output above the limit is cut. The types `math` and `cpp` are not supported; such a submission gets the
reason `invalid_input`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, Field

from rstar2_train.api.judge_limits import MAX_OUTPUT_BYTES, JudgeLimits
from rstar2_train.judge.api.admission import CallAdmission
from rstar2_train.judge.api.schema import BAD_BODY, UNAVAILABLE, ApiMessage
from rstar2_train.judge.process_exit import signal_note
from rstar2_train.judge.types import CallResult
from rstar2_train.utils.json_route import JsonRoute

log = logging.getLogger("rstar2.judge.api")

MAX_CHARACTERS = 1000
"""Characters of stdout and of stderr in a response: code-judge's default. Outputs are compared before truncation."""
MAX_NAME = 1000
"""Characters of an id."""
MAX_REPORTED = 100
"""Missing modules that are logged, one message each."""
STARTED_TOGETHER = 256
"""Submissions of a batch that start in one turn of the event loop."""
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(\w{1,64})", re.MULTILINE)

Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
REASONS: dict[str, Reason] = {
    "timeout": "worker_timeout",
    "invalid": "invalid_input",
    # It was not run, so a retry may succeed, and those clients retry only on `queue_timeout`.
    "internal": "queue_timeout",
}


def _check_name(value: str) -> str:
    if len(value) > MAX_NAME:
        raise ValueError(f"The id has {len(value)} characters; at most {MAX_NAME} are allowed.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"A response cannot contain this text: {error.reason}. Send Unicode text.") from None
    return value


Name = Annotated[str, AfterValidator(_check_name)]
"""Id of the client's choice, returned in the response."""


class Submission(ApiMessage):
    """One program."""

    sub_id: Name | None = None
    type: Literal["python", "cpp", "math"]
    options: dict[str, str] | None = None
    solution: str
    """The program."""
    input: str | None = None
    """Standard input of the program."""
    expected_output: str | None = None
    """The output that makes it a success. Surrounding whitespace is ignored."""


class BatchSubmission(ApiMessage):
    """Several programs, answered together."""

    sub_id: Name | None = None
    type: Literal["batch"] = "batch"
    submissions: Annotated[list[Submission], Field(min_length=1, fail_fast=True)]
    """The programs. Only the first invalid one is reported."""


class JudgeResult(ApiMessage):
    """A verdict."""

    sub_id: str
    """Id of the submission."""
    success: bool
    """Whether it exited with status 0 and printed the expected output."""
    run_success: bool
    """Whether it exited with status 0."""
    cost: float
    """Run time in seconds."""
    reason: Reason = ""
    """Why it was not run to its end, if so."""


class SubmissionResult(JudgeResult):
    """A verdict with the output of the program."""

    stdout: str | None = None
    """The first 1000 characters of its standard output."""
    stderr: str | None = None
    """The first 1000 characters of its standard error."""


class BatchResult(ApiMessage):
    """Results in the order of the submissions."""

    sub_id: str
    results: list[SubmissionResult]


class BatchJudgeResult(ApiMessage):
    """Verdicts in the order of the submissions."""

    sub_id: str
    results: list[JudgeResult]


class ServerStatus(ApiMessage):
    """Load of the judge. Those clients accept exactly these fields."""

    queue: int
    """Waiting and running calls."""
    num_workers: int
    """Sandboxes that take calls."""


def to_submission_result(submission: Submission, result: CallResult) -> SubmissionResult:
    """Convert a result to code-judge's format. Pure."""
    run_success = result.status == "ok"
    expected = submission.expected_output
    notes = {"memory": "out of memory\n", "killed": "killed\n"}
    stderr = result.stderr.removesuffix(signal_note(result.exit_code))  # code-judge does not report signals
    return SubmissionResult(
        sub_id=submission.sub_id or str(uuid.uuid4()),
        success=run_success and (expected is None or result.stdout.strip() == expected.strip()),
        run_success=run_success,
        cost=result.run_seconds,
        stdout=result.stdout[:MAX_CHARACTERS],
        stderr=(stderr or notes.get(result.status, ""))[:MAX_CHARACTERS],
        reason=REASONS.get(result.status, ""),
    )


def limits_of(submission: Submission, wall_seconds: float) -> JudgeLimits:
    """Return the limits of a submission. Output that must be compared is kept."""
    limits = JudgeLimits(wall_seconds=wall_seconds)
    expected_bytes = 2 * len((submission.expected_output or "").encode())
    return limits.model_copy(update={"output_bytes": min(MAX_OUTPUT_BYTES, max(limits.output_bytes, expected_bytes))})


class MissingModules:
    """Logs each module that programs import and the sandboxes do not have: rewards of such programs are wrong."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, result: CallResult) -> None:
        """Log the missing module that ended a program, the first time."""
        match = _MISSING.search(result.stderr) if result.status == "error" else None
        if match is None or match[1] in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(match[1])
        log.error(
            "A program of a code-judge client failed: the sandboxes have no module %s. A client that computes rewards "
            "in the judge counts this as reward 0. Install the module where the judge runs, add its distribution or "
            "its folder to RSTAR2_SANDBOX_PACKAGES, and restart the judge.",
            match[1],
        )


def create_router(admission: Callable[[], CallAdmission], *, wall_seconds: float) -> APIRouter:
    """Return the routes. `admission` is called at each request, because it exists only after the application starts.

    `wall_seconds`: time limit of a program.
    """
    router = APIRouter(tags=["code-judge"], route_class=JsonRoute)
    missing_modules = MissingModules()

    async def run_submission(submission: Submission) -> SubmissionResult:
        if submission.type != "python":
            result = CallResult("invalid", stderr=f"this judge runs python, not {submission.type}\n")
        else:
            limits = limits_of(submission, wall_seconds)
            result = await admission().run(submission.solution, submission.input or "", limits, verb="code_judge")
            missing_modules.report(result)
        return to_submission_result(submission, result)

    async def run(submission: Submission) -> Any:
        admission().admit(1)
        return await run_submission(submission)

    async def run_batch(batch: BatchSubmission) -> Any:
        admission().admit(len(batch.submissions))
        runs: list[asyncio.Task[SubmissionResult]] = []
        for start in range(0, len(batch.submissions), STARTED_TOGETHER):
            runs += [
                asyncio.create_task(run_submission(s)) for s in batch.submissions[start : start + STARTED_TOGETHER]
            ]
            await asyncio.sleep(0)  # thousands of them would hold the event loop
        results = await asyncio.gather(*runs)
        return {"sub_id": batch.sub_id or str(uuid.uuid4()), "results": results}

    @router.get("/status", responses=UNAVAILABLE)
    async def status() -> ServerStatus:
        """Return the load of the judge."""
        current = await admission().status()
        return ServerStatus(queue=current["queued"], num_workers=current["executors"]["ready"])

    def add(path: str, route: Callable[..., Awaitable[Any]], response: type[ApiMessage], summary: str) -> None:
        options: Any = {"response_model": response, "summary": summary, "responses": BAD_BODY}
        router.add_api_route(path, route, methods=["POST"], **options)

    add("/run", run, SubmissionResult, "Run a program")
    add("/judge", run, JudgeResult, "Run a program and return only the verdict")
    for name in ("batch", "long-batch"):
        add(f"/run/{name}", run_batch, BatchResult, "Run programs")
        add(f"/judge/{name}", run_batch, BatchJudgeResult, "Run programs and return only the verdicts")
    return router
