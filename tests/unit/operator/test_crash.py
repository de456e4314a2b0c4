"""The operator is killed at each request, in each phase: the objects are those of an operator that was not killed.

Watch events arrive immediately, or only after the operator has done everything that it can do without them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names, status_writer
from rstar2_operator.informer import CHILDREN
from tests.support.fake_kube_api import FakeKubeApi, Operator
from tests.support.memory_api import Killed
from tests.support.simulated_cluster import manifest

VERBS = ("apply", "create", "delete", "find")
LATE = frozenset(CHILDREN)


@pytest.fixture(autouse=True)
def write_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write statuses without a delay."""
    for name in ("SETTLE_SECONDS", "HOLD_SECONDS", "COUNTS_SECONDS"):
        monkeypatch.setattr(status_writer, name, 0.0)


class DyingApi:
    """Kills the operator at one request, before or after its effect."""

    def __init__(self, api: FakeKubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests = 0
        self.kill_at: int | None = None
        self.after_effect = False
        for verb in VERBS:
            monkeypatch.setattr(api, verb, self._wrapped(getattr(api, verb)))

    def _wrapped(self, call: Any) -> Any:
        async def request(*arguments: Any, **options: Any) -> Any:
            self.requests += 1
            if self.requests != self.kill_at:
                return await call(*arguments, **options)
            if self.after_effect:
                with contextlib.suppress(ApiException):  # no process receives the response
                    await call(*arguments, **options)
            raise Killed

        return request


async def settle(operator: Operator) -> int:
    """Reconcile until there is nothing to do, with a new process after each kill. Return the number of kills."""
    kills = 0
    while True:
        work = asyncio.create_task(operator._reconciler.work())
        idle = 0
        while idle < 10 and not work.done():
            await asyncio.sleep(0)
            idle = 0 if operator.api.queue.busy else idle + 1
        if not work.done():
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return kills
        with contextlib.suppress(Killed):
            work.result()
        kills += 1
        operator.api.queue = type(operator.api.queue)()
        operator.api.deliver()  # a new process lists all objects
        operator.restart()


def finish(operator: Operator, job: str) -> None:
    condition = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-22T08:00:00Z"}
    operator.api.edit("Job", job, status={"conditions": [condition]})


def steps(operator: Operator) -> list[Any]:
    """The changes that lead a job through its phases."""
    return [
        lambda: None,
        lambda: finish(operator, "demo-prepare"),
        lambda: operator.change(executor={"replicas": 3}),
        lambda: operator.change(suspend=True),
        lambda: operator.change(suspend=False),
        operator.delete,
        lambda: finish(operator, "demo-report"),
    ]


def objects(operator: Operator) -> dict[tuple[str, str], Any]:
    """The objects of a job without the fields that differ between two runs."""
    result = {}
    for key, body in operator.api.objects.items():
        meta = body["metadata"]
        annotations = {name: value for name, value in meta.get("annotations", {}).items() if name != names.HASH}
        result[key] = body.get("spec"), meta.get("labels"), annotations, body.get("rules"), meta.get("finalizers")
    if ("AgenticRLJob", "demo") not in operator.api.objects:
        return result
    job = operator.status
    result["status", "demo"] = {name: job[name] for name in ("phase", "restarts", "stage")}
    return result


def uids(operator: Operator) -> dict[tuple[str, str], str]:
    return {key: body["metadata"]["uid"] for key, body in operator.api.objects.items()}


async def at_phase(step: int) -> Operator:
    """Lead a job to the start of a phase."""
    operator = Operator(manifest("g"))
    for change in steps(operator)[:step]:
        change()
        assert await settle(operator) == 0
    return operator


async def run(
    start: Operator,
    monkeypatch: pytest.MonkeyPatch,
    *,
    step: int,
    kill_at: int | None = None,
    after: bool = False,
    late: bool = False,
) -> tuple[Operator, set[tuple[str, str]], int]:
    """Run a phase from its start, and kill the operator at a request.

    `late`: whether the watch events of the children arrive late. Return the operator, the objects that the phase did
    not replace, and the number of requests.
    """
    with monkeypatch.context() as patch:
        operator = start.copy()
        dying = DyingApi(operator.api, patch)
        dying.kill_at, dying.after_effect = kill_at, after
        before = uids(operator)
        operator.api.late_kinds = set(LATE if late else ())
        steps(operator)[step]()
        kills = await settle(operator)
        while operator.api.has_late_events:
            operator.api.deliver()
            kills += await settle(operator)
        assert kills == (kill_at is not None)
        return operator, {key for key, _ in before.items() & uids(operator).items()}, dying.requests


@pytest.mark.parametrize("late", [False, True], ids=["events", "late events"])
@pytest.mark.parametrize("step", range(7))
async def test_crash_at_each_request_changes_nothing(step: int, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each phase, a kill at any request leads to the objects, Jobs and phase of the undisturbed run."""
    start = await at_phase(step)
    undisturbed, kept, _ = await run(start, monkeypatch, step=step)
    expected = objects(undisturbed)
    operator, same, count = await run(start, monkeypatch, step=step, late=late)
    assert (objects(operator), same) == (expected, kept) and count > 0
    for kill_at in range(1, count + 1):
        for after in (True,) if late else (False, True):  # the response is lost too
            operator, same, _ = await run(start, monkeypatch, step=step, kill_at=kill_at, after=after, late=late)
            assert (objects(operator), same) == (expected, kept), (kill_at, after)
