"""All objects that a plan asks for, in the order in which they should be made. Pure."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.access import access
from rstar2_operator.builders.config import config, secret
from rstar2_operator.builders.judge import executor, judge
from rstar2_operator.builders.network import network
from rstar2_operator.builders.pod import BuildContext, Manifest
from rstar2_operator.builders.redis import redis
from rstar2_operator.builders.rollout import rollout
from rstar2_operator.builders.storage import storage
from rstar2_operator.builders.trainer import attempt, pod_names, prepare, report
from rstar2_operator.decide.plan import FINAL, Plan
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources


def build_context(job: AgenticRLJob, settings: OperatorSettings) -> BuildContext:
    """What the builders work from: the job with the site's defaults, and with sources as paths in the pods."""
    if job.spec.tracking.mlflow.uri is None and settings.mlflow_uri:
        job = job.model_copy(deep=True)
        job.spec.tracking.mlflow.uri = settings.mlflow_uri
    inside, claims = resolved_sources(job, names.state_folder(job.metadata.name))
    return BuildContext(job=job, settings=settings, located=inside, claims=tuple(claims))


def objects(one: BuildContext, plan: Plan, *, has_secret: bool) -> list[Manifest]:
    """Objects of a job in a plan; `has_secret`: its Secret was made before, and is not made again."""
    wanted = [*storage(one), *config(one), *access(one), *network(one)]
    if not has_secret:
        wanted.append(secret(one))
    if plan.phase not in FINAL:
        wanted.append(pod_names(one))
    if plan.prepare:
        wanted.append(prepare(one))
    if plan.serving:
        wanted += [*redis(one), *judge(one), *executor(one), *rollout(one)]
    if plan.attempt is not None:
        wanted.append(attempt(one, plan.attempt))
    if plan.report is not None:
        wanted.append(report(one, plan.report))
    return wanted
