"""The objects of a decision, in the order of their creation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rstar2_operator import names
from rstar2_operator.builders.access import access
from rstar2_operator.builders.agent import agent
from rstar2_operator.builders.config import config, secret
from rstar2_operator.builders.environment import environment
from rstar2_operator.builders.judge import executor, judge
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.network import network
from rstar2_operator.builders.pod import BuildContext, image
from rstar2_operator.builders.redis import redis
from rstar2_operator.builders.rollout import rollout
from rstar2_operator.builders.storage import storage
from rstar2_operator.builders.teacher import teacher
from rstar2_operator.builders.trainer import attempt, disruption_budget, pod_names, prepare, report
from rstar2_operator.builders.workload import capped, workload
from rstar2_operator.decide.decision import FINAL, Decision, StageAttempt
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.base import IMAGE
from rstar2_train.api.issue import InvalidJob, Issue
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.stages import Stage


def build_context(job: AgenticRLJob, settings: OperatorSettings) -> BuildContext:
    """Return the builders' input: the job with the site's defaults, and with sources as paths in the pods.

    Raises InvalidJob if a source cannot be resolved, or a registry prefix does not fit before an image.
    """
    if job.spec.tracking.mlflow.uri is None and settings.mlflow_uri:
        job = job.model_copy(deep=True)
        job.spec.tracking.mlflow.uri = settings.mlflow_uri
    resolved, claims = resolved_sources(job, names.state_folder(job.metadata.name))
    context = BuildContext(job=job, settings=settings, resolved=resolved, claims=tuple(claims))
    if issues := list(_wrong_images(context)):
        raise InvalidJob(issues)
    return context


def _wrong_images(context: BuildContext) -> Iterator[Issue]:
    """Yield the images that a registry prefix has made invalid: it may not precede one with a port."""
    for role in ("trainer", "rollout", "judge", "redis"):
        own, default = getattr(context.job.spec, role).image, getattr(context.settings, f"{role}_image")
        if not re.fullmatch(IMAGE, name := image(own, default, context)):
            message = "the registryPrefix of job or chart does not fit before the chart's image; set the full name here"
            yield Issue(f"spec.{role}.image", message, name)


def objects(context: BuildContext, decision: Decision, *, has_secret: bool) -> list[Manifest]:
    """Return the objects of a decision. `has_secret`: the Secret exists, and is not created again."""
    result = [*storage(context), *config(context), *access(context), *network(context)]
    if not has_secret:
        result.append(secret(context))
    if decision.phase not in FINAL:
        result.append(pod_names(context))
    if decision.prepare:
        result.append(prepare(context))
    if decision.workload is not None and decision.stage is not None:
        result.append(_workload(context, decision.workload, context.job.stage(decision.stage)))
    if decision.serving:
        stage = context.job.stage(decision.stage) if decision.stage is not None else None
        result += [capped(body, context.placements) for body in _serving(context, stage)]
    if decision.attempt is not None:
        if context.job.spec.trainer.disruption_policy == "Refuse":
            result.append(disruption_budget(context))
        result.append(attempt(context, decision.attempt))
    if decision.report and decision.ending is not None:
        result.append(report(context, decision.ending))
    return result


def _serving(context: BuildContext, stage: Stage | None) -> list[Manifest]:
    judged = (redis, judge, executor) if context.job.spec.needs_judge else ()
    bodies = [body for role in (*judged, rollout, environment, agent) for body in role(context)]
    return bodies if stage is None else [*bodies, *teacher(context, stage)]


def _workload(context: BuildContext, name: str, stage: Stage) -> Manifest:
    """Return the Workload of a stage, from the objects that its attempt would have."""
    serving = _serving(context, stage) if stage.needs_engines else []
    return workload(context, name, stage, [attempt(context, StageAttempt(stage.name, 1)), *serving])
