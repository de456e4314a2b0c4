"""The objects that serve the model of a job: output of serving_manifests.py, content of examples/serve.yaml. Pure.

Engine, judge, executors and Redis come from the builders of a running job; the endpoint replaces the trainer. The
operator ignores these objects: they belong to the person who applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rstar2_operator import names
from rstar2_operator.builders.access import pods_account
from rstar2_operator.builders.config import empty_secret, job_file, secret
from rstar2_operator.builders.endpoint import endpoint
from rstar2_operator.builders.judge import executor, judge
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.network import serving_network
from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.builders.redis import redis
from rstar2_operator.builders.rollout import rollout
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import CLAIM_MOUNT, resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.inference.tool_call_args import tool_call_arguments

EXECUTORS = 4
"""Default number of executors: people need fewer tool calls than a training step."""


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """The model to serve."""

    job: AgenticRLJob
    stage: str
    """Stage whose final model is served."""
    settings: OperatorSettings
    """Settings of the site."""
    executors: int = EXECUTORS
    """Number of executors."""


def last_trained(job: AgenticRLJob) -> str:
    """Return the last stage that trains a model. Raises ValueError if there is none."""
    if not (stages := _training_stages(job)):
        raise ValueError(f"no stage of {job.metadata.name} trains a model, so there is no model to serve")
    return stages[-1]


def _training_stages(job: AgenticRLJob) -> list[str]:
    return [stage.name for stage in job.spec.stages if stage.learns]


def serving(request: ServingRequest) -> list[Manifest]:
    """Return all objects in the order of their creation; the Secret is empty.

    Raises ValueError for a stage that trains no model, InvalidJob for a source that a pod cannot reach.
    """
    context = _context(request)
    bodies = [
        empty_secret(context),
        job_file(context, {"job.json": context.resolved}),
        pods_account(context),
        *serving_network(context),
        *redis(context),
        *judge(context),
        *executor(context),
        *rollout(context),
        *endpoint(context),
    ]
    return [_in_namespace(body, request.job) for body in bodies]


def serving_secret(request: ServingRequest) -> Manifest:
    """Return the Secret with new tokens and keys."""
    return _in_namespace(secret(_context(request), ("serve-token",)), request.job)


def _context(request: ServingRequest) -> BuildContext:
    """Return the builders' input: the job under another name, with its own claim and the trained model."""
    trained = request.job.metadata.name
    if request.job.spec.storage.url:
        raise ValueError(
            f"the model of {trained} is in the bucket of spec.storage.url, and engines read models from a claim: "
            "download it by `rstar2 fetch`, and serve it by `rstar2 serve`, or copy it to a claim"
        )
    if request.stage not in (stages := _training_stages(request.job)):
        raise ValueError(f"stage {request.stage!r} of {trained} trains no model; training stages: {', '.join(stages)}")
    job = request.job.model_copy(deep=True)
    job.metadata.name = names.serving(trained)
    job.spec.storage.claim_name = job.spec.storage.claim_name or names.claim(trained)
    job.spec.rollout.replicas = 1
    job.spec.rollout.weight_transport = "Folder"  # its weights never change
    job.spec.judge.replicas = 1
    job.spec.executor.replicas = request.executors
    state = names.state_folder(trained)
    resolved, _ = resolved_sources(job, state)
    resolved.metadata.name = trained  # the serving name may be longer than the name of a job may be
    source = resolved.spec.model
    source.source = str(JobState(Path(state)).stage(request.stage).model)
    resolved.spec.rollout.engine_args |= tool_call_arguments(source)
    template = PurePosixPath(source.chat_template or "/")
    claims = (template.relative_to(CLAIM_MOUNT).parts[0],) if template.is_relative_to(CLAIM_MOUNT) else ()
    return BuildContext(
        job=job, settings=request.settings, resolved=resolved, claims=claims, manager=names.SERVE_MANAGER
    )


def _in_namespace(body: Manifest, job: AgenticRLJob) -> Manifest:
    """Return the object in the job's namespace, if the manifest sets one: the claim is there."""
    if job.metadata.namespace is None:
        return body
    return {**body, "metadata": {**body["metadata"], "namespace": job.metadata.namespace}}
