"""Plain objects that serve a model which a job has trained: what serve.py prints, and examples/serve.yaml holds. Pure.

The roles are the job's own, with the same builders: engine, judge, executors, Redis; the endpoint is in place of the
trainer. No operator looks after them: they belong to whoever applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rstar2_operator import names
from rstar2_operator.builders.access import pods_account
from rstar2_operator.builders.config import TOKENS, empty_secret, job_file, secret
from rstar2_operator.builders.endpoint import endpoint
from rstar2_operator.builders.judge import executor, judge
from rstar2_operator.builders.network import serving_network
from rstar2_operator.builders.pod import BuildContext, Manifest
from rstar2_operator.builders.redis import redis
from rstar2_operator.builders.rollout import rollout
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import CLAIM_MOUNT, resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.inference.tool_call_args import tool_call_arguments

EXECUTORS = 4
"""Sandboxes, unless told otherwise: people make few calls beside the rollouts of a training step."""


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """What is to be served."""

    job: AgenticRLJob
    stage: str
    """The stage that handed the model on."""
    settings: OperatorSettings
    executors: int = EXECUTORS


def last_trained(job: AgenticRLJob) -> str:
    """The last stage that hands on a model. Raises ValueError when there is none."""
    if not (learning := _learning(job)):
        raise ValueError(f"no stage of {job.metadata.name} trains a model: there is none to serve")
    return learning[-1]


def _learning(job: AgenticRLJob) -> list[str]:
    return [stage.name for stage in job.spec.stages if stage.learns]


def serving(wanted: ServingRequest) -> list[Manifest]:
    """All objects, in the order in which they should be made; the Secret is empty.

    Raises ValueError for a stage that hands on no model, InvalidJob for a source that no pod can find.
    """
    one = _built(wanted)
    made = [
        *(empty_secret(one), job_file(one, {"job.json": one.located}), pods_account(one), *serving_network(one)),
        *(*redis(one), *judge(one), *executor(one), *rollout(one), *endpoint(one)),
    ]
    return [_placed(body, wanted.job) for body in made]


def serving_secret(wanted: ServingRequest) -> Manifest:
    """The Secret with fresh tokens and keys."""
    return _placed(secret(_built(wanted), (*TOKENS, "serve-token")), wanted.job)


def _built(wanted: ServingRequest) -> BuildContext:
    """What the builders work from: the job under another name, with its own claim and the trained model."""
    trained = wanted.job.metadata.name
    if wanted.stage not in (learning := _learning(wanted.job)):
        raise ValueError(f"no stage {wanted.stage!r} of {trained} trains a model; these do: {', '.join(learning)}")
    job = wanted.job.model_copy(deep=True)
    job.metadata.name = names.serving(trained)
    job.spec.storage.claim_name = job.spec.storage.claim_name or names.claim(trained)
    job.spec.rollout.replicas = 1
    job.spec.judge.replicas = 1
    job.spec.executor.replicas = wanted.executors
    state = names.state_folder(trained)
    inside, _ = resolved_sources(job, state)
    inside.metadata.name = trained  # what is before it would make it too long a name for a job
    source = inside.spec.model
    source.source = str(JobState(Path(state)).stage(wanted.stage).model)
    inside.spec.rollout.engine_args |= tool_call_arguments(source)
    template = PurePosixPath(source.chat_template or "/")
    claims = (template.relative_to(CLAIM_MOUNT).parts[0],) if template.is_relative_to(CLAIM_MOUNT) else ()
    return BuildContext(job=job, settings=wanted.settings, located=inside, claims=claims, manager=names.SERVE_MANAGER)


def _placed(body: Manifest, job: AgenticRLJob) -> Manifest:
    """In the job's namespace, where the manifest names one: its claim is there."""
    if job.metadata.namespace is None:
        return body
    return {**body, "metadata": {**body["metadata"], "namespace": job.metadata.namespace}}
