"""The Jobs of a job: one Indexed Job per stage attempt, and the Jobs for preparation and report.

The launcher (rstar2_train.launch.pod) joins all pods of an attempt into one Ray cluster. Pod 0 is Ray's head and runs
the orchestrator, whose exit code is the pod's. Only the operator restarts an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rstar2_operator import names
from rstar2_operator.builders import accelerator, config
from rstar2_operator.builders.environment import own_environment
from rstar2_operator.builders.manifest import Manifest, merge, resources
from rstar2_operator.builders.pod import (
    HEADLESS,
    BuildContext,
    Container,
    PodTemplate,
    bucket_access,
    image,
    job_file,
    server_tokens,
    service,
    shared_memory,
    storage,
    template,
)
from rstar2_operator.decide.decision import Ending, StageAttempt
from rstar2_operator.decide.storage import source_digest
from rstar2_operator.observed import timestamp
from rstar2_train.api.base import LocalReference
from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.stages import Stage
from rstar2_train.utils import ports
from rstar2_train.utils.auth import AGENT_TOKEN, ENGINE_TOKEN, JUDGE_TOKEN, TEACHER_TOKEN
from rstar2_train.utils.ray_environment import RAY_ENVIRONMENT

OF_NODES = ("cpu", "memory", "ephemeral-storage")
"""Resources that each node has; the others are devices."""
CPU_RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}}
UNCOUNTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
"""Rule of a podFailurePolicy: an evicted, preempted or drained pod is replaced, and does not count."""
HUB_TOKEN, MLFLOW_USER, MLFLOW_PASSWORD = "HF_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
"""Variables that the clients of the Hub and of MLflow read."""


def pod_names(context: BuildContext) -> Manifest:
    """Return the headless Service that gives stage pods their DNS names, also before they are ready."""
    name, labels = names.trainer(context.name), context.labels("trainer")
    return service(name, labels, "ray", ports.RAY, **HEADLESS, publishNotReadyAddresses=True)


def disruption_budget(context: BuildContext) -> Manifest:
    """Return the PodDisruptionBudget that refuses every eviction of a trainer pod.

    A budget of a Job's pods must be a number of pods: all of an attempt.
    """
    labels = context.labels("trainer")
    replicas = max(context.job.replicas(stage) for stage in context.job.spec.stages)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": names.trainer(context.name), "labels": labels},
        # A pod that is not ready has no work to lose, and must not block the drain of its node.
        "spec": {
            "minAvailable": replicas,
            "selector": {"matchLabels": labels},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def attempt(context: BuildContext, next_attempt: StageAttempt) -> Manifest:
    """Return the Job of one attempt of a stage."""
    stage = context.job.stage(next_attempt.stage)
    name = names.attempt(context.name, stage.name, next_attempt.number)
    replicas = context.job.replicas(stage)
    labels = {
        **context.labels("trainer"),
        names.STAGE_LABEL: stage.name,
        names.ATTEMPT_LABEL: str(next_attempt.number),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": _annotations(next_attempt),
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": replicas,
            "parallelism": replicas,
            "backoffLimit": 0,
            # No podFailurePolicy: with it a Job fails only when a terminating pod has ended, which is too late for the
            # checkpoint of the others, and never if the pod's node is lost.
            # When the orchestrator has finished, the other pods have no work.
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "template": _stage_template(context, stage, next_attempt, replicas, labels),
        },
    }


def _annotations(next_attempt: StageAttempt) -> dict[str, str]:
    total, counted = next_attempt.restarts.total, next_attempt.restarts.counted
    annotations = {names.RESTARTS: str(total), names.COUNTED: str(counted.number)}
    if counted.since is not None:
        annotations[names.WINDOW_START] = timestamp(counted.since)
    if next_attempt.failures:
        annotations[names.FAILURES] = str(next_attempt.failures)
    if next_attempt.disruptions:
        annotations[names.DISRUPTIONS] = str(next_attempt.disruptions)
    if next_attempt.start_step is not None:
        annotations[names.START_STEP] = str(next_attempt.start_step)
    return annotations


def _stage_template(
    context: BuildContext, stage: Stage, next_attempt: StageAttempt, replicas: int, labels: dict[str, str]
) -> Manifest:
    job = context.job
    trainer = job.spec.trainer
    job_volume, job_mount = job_file(context)
    volumes, mounts = storage(context)
    learns = stage.learns
    on_gpu = learns and job.spec.accelerator.vendor != "None"
    shm_volume, shm_mount = shared_memory("64Gi" if on_gpu else "512Mi")
    command = [
        *("python", "-m", "rstar2_train.launch.pod", "launch", "--job", names.JOB_FILE),
        *("--state", names.state_folder(context.name), "--stage", stage.name, "--attempt", str(next_attempt.number)),
        *("--nodes", str(replicas), "--subdomain", names.trainer(context.name)),
        *("--progress", names.progress(context.name)),
        *_bucket_option(context),
    ]
    if stage.needs_engines:
        command += ["--engines", f"{names.rollout(context.name)}:{names.ENGINE_PORT}"]
        if job.spec.needs_judge:
            command += ["--judge", f"http://{names.judge(context.name)}:{names.JUDGE_PORT}"]
        if job.served_teacher(stage) is not None:
            command += ["--teacher", f"http://{names.teacher(context.name)}:{names.ENGINE_PORT}"]
        if own_environment(context) is not None:
            command += ["--environment", f"{names.environment(context.name)}:{names.ENVIRONMENT_PORT}"]
    secrets, listening = {ENGINE_TOKEN: "engine-token", JUDGE_TOKEN: "judge-token"}, {"ray": ports.RAY}
    if stage.needs_engines and job.spec.agent is not None:
        command += ["--agent-port", str(ports.AGENT)]
        secrets[AGENT_TOKEN], listening["agent"] = config.AGENT_TOKEN, ports.AGENT
    container = Container(
        name="trainer",
        image=image(trainer.image, context.settings.trainer_image, context),
        command=command,
        env=RAY_ENVIRONMENT,
        tuning=accelerator.environment(context) if learns else {},
        env_from=bucket_access(context),
        site_secrets={
            **_mlflow_login(context),
            **server_tokens(context.job),
            **_hub_token(context, at_start=False),
            **_teacher_token(context),
        },
        secrets=secrets,
        fields={"POD_IP": "status.podIP", "POD_NAMESPACE": "metadata.namespace"},
        ports=listening,
        mounts=[job_mount, shm_mount, *mounts],
        resources=_resources(context, learns=learns),
    )
    extra: Manifest = {
        **(accelerator.claims(context, "trainer") if learns else {}),
        "restartPolicy": "Never",
        "subdomain": names.trainer(context.name),
        "terminationGracePeriodSeconds": trainer.termination_grace_period_seconds,
    }
    pod = PodTemplate(
        role="trainer",
        containers=[container],
        volumes=[job_volume, shm_volume, *volumes],
        account=names.trainer(context.name),
        groups=accelerator.groups(context) if learns else (),
        labels=labels,
        opts_out=True,
        extra=extra,
    )
    return template(pod, context)


def _resources(context: BuildContext, *, learns: bool) -> Manifest:
    trainer = context.job.spec.trainer
    amounts = resources(trainer.resources)
    if not learns:
        # A Filter or Evaluate stage has no ranks, so its pod must not wait for a trainer's devices.
        return amounts if context.job.spec.accelerator.vendor == "None" else _of_workers(context, amounts)
    return merge(merge(amounts, accelerator.devices(context, trainer.gpus_per_replica)), accelerator.rdma(context))


def _of_workers(context: BuildContext, amounts: Manifest) -> Manifest:
    """Return `amounts` without devices. The default requests are those of spec.rollout.workers processes."""
    workers = context.job.spec.rollout.workers or 1
    requests = {"cpu": f"{500 * workers}m", "memory": f"{workers}Gi"}
    own = {kind: {name: given[name] for name in OF_NODES if name in given} for kind, given in amounts.items()}
    return merge({"requests": requests}, own)


def prepare(context: BuildContext) -> Manifest:
    """Return the Job that generates or downloads model and datasets, once, before the first stage."""
    secrets = context.job.spec.secret_refs
    arguments = ["prepare", "--progress", names.progress(context.name)]
    tokens = _hub_token(context, at_start=True) | _teacher_token(context)
    job = _one_pod_job(context, "prepare", arguments, env_from=[secrets.proxy, secrets.storage], site_secrets=tokens)
    job["metadata"]["annotations"] = {names.SOURCES: source_digest(context.job)}
    # The Job controller's backoff bridges a network failure; wrong data fails immediately.
    wrong_data = {"operator": "In", "values": [int(ExitCode.CONFIGURATION)]}
    rules = [{"action": "FailJob", "onExitCodes": wrong_data}, UNCOUNTED]
    job["spec"] |= {"backoffLimit": 6, "podFailurePolicy": {"rules": rules}}
    return job


def report(context: BuildContext, ending: Ending) -> Manifest:
    """Return the Job that writes the report, sends the remaining metrics to MLflow and closes its run."""
    arguments = ["report", "--ending", ending]
    job = _one_pod_job(
        context, "report", arguments, env_from=bucket_access(context), site_secrets=_mlflow_login(context)
    )
    # The deadline ends the retries. A kubelet that rejects pods, which count, must not use them up in seconds.
    job["spec"] |= {"backoffLimit": 6, "podFailurePolicy": {"rules": [UNCOUNTED]}, "activeDeadlineSeconds": 300}
    return job


def _bucket_option(context: BuildContext) -> list[str]:
    return ["--bucket"] if context.job.spec.storage.url else []


def _hub_token(context: BuildContext, *, at_start: bool) -> dict[str, tuple[str, str]]:
    """Return variable -> Secret and key of the Hub's token.

    `at_start`: of the preparation. Attempts need it too if their disks are empty: they download new sources.
    """
    token = context.job.spec.secret_refs.hub_token
    if token is None or not (at_start or context.job.spec.storage.url):
        return {}
    return {HUB_TOKEN: (token.name, token.key)}


def _teacher_token(context: BuildContext) -> dict[str, tuple[str, str]]:
    """Return variable -> Secret and key of the token of a teacher's server."""
    token = context.job.spec.secret_refs.teacher
    return {} if token is None else {TEACHER_TOKEN: (token.name, token.key)}


def _mlflow_login(context: BuildContext) -> dict[str, tuple[str, str]]:
    """Return variable -> Secret and key of the user and the password of MLflow."""
    login = context.job.spec.tracking.mlflow.secret_ref
    if login is None:
        return {}
    return {MLFLOW_USER: (login.name, login.username_key), MLFLOW_PASSWORD: (login.name, login.password_key)}


def _one_pod_job(
    context: BuildContext,
    role: Literal["prepare", "report"],
    arguments: list[str],
    *,
    env_from: Sequence[LocalReference | None],
    site_secrets: Mapping[str, tuple[str, str]],
) -> Manifest:
    name = {"prepare": names.prepare, "report": names.report}[role](context.name)
    job_volume, job_mount = job_file(context)
    volumes, mounts = storage(context)
    command = ["python", "-m", "rstar2_train.launch.pod", *arguments[:1], "--job", names.JOB_FILE,
               "--state", names.state_folder(context.name), *arguments[1:], *_bucket_option(context)]  # fmt: skip
    container = Container(
        name=role,
        image=image(context.job.spec.trainer.image, context.settings.trainer_image, context),
        command=command,
        env_from=env_from,
        site_secrets=site_secrets,
        fields={"POD_NAMESPACE": "metadata.namespace"},
        mounts=[job_mount, *mounts],
        resources=CPU_RESOURCES,
    )
    pod = PodTemplate(
        role="trainer",
        containers=[container],
        volumes=[job_volume, *volumes],
        account=names.trainer(context.name),
        labels={names.ROLE_LABEL: role},
        helper=role,
        opts_out=True,
        extra={"restartPolicy": "Never"},
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": context.labels(role)},
        "spec": {"template": template(pod, context)},
    }
