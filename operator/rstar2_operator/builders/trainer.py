"""The pods that drive a job: an Indexed Job for each stage attempt, and the Jobs before the first and after the last.

All pods of an attempt form one Ray cluster by our own launcher (rstar2_train.launch.pod): pod 0 is Ray's head and runs
the driver, whose exit code is the pod's. Nothing restarts by itself: only the operator retries.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders import accelerator
from rstar2_operator.builders.pod import (
    HEADLESS,
    BuildContext,
    Container,
    Manifest,
    PodTemplate,
    image,
    job_file,
    merge,
    resources,
    service,
    shared_memory,
    storage,
    template,
)
from rstar2_operator.decide.plan import Ending, StageAttempt
from rstar2_train.api.base import LocalReference
from rstar2_train.api.contracts import ExitCode
from rstar2_train.api.stages import Stage
from rstar2_train.utils import ports
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN
from rstar2_train.utils.ray_environment import RAY_ENVIRONMENT

CPU_DRIVER = {"requests": {"cpu": "500m", "memory": "1Gi"}}


def pod_names(built: BuildContext) -> Manifest:
    """The headless Service that gives the stage pods their names, before they are ready too."""
    name, labels = names.trainer(built.name), built.labels("trainer")
    return service(name, labels, "ray", ports.RAY, **HEADLESS, publishNotReadyAddresses=True)


def attempt(built: BuildContext, wanted: StageAttempt) -> Manifest:
    """The Job of one attempt of a stage."""
    stage = built.job.stage(wanted.stage)
    name = names.attempt(built.name, stage.name, wanted.number)
    replicas = built.job.replicas(stage)
    labels = {
        **built.labels("trainer"),
        names.STAGE_LABEL: stage.name,
        names.ATTEMPT_LABEL: str(wanted.number),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {names.RESTARTS: str(wanted.restarts), names.COUNTED: str(wanted.counted)},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": replicas,
            "parallelism": replicas,
            "backoffLimit": 0,
            # The workers have nothing left to do when the driver is done.
            "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
            "template": _stage_template(built, stage, wanted, replicas, labels),
        },
    }


def _stage_template(
    built: BuildContext, stage: Stage, wanted: StageAttempt, replicas: int, labels: dict[str, str]
) -> Manifest:
    job = built.job
    trainer = job.spec.trainer
    job_volume, job_mount = job_file(built)
    volumes, mounts = storage(built)
    learns = stage.learns
    on_gpu = learns and job.spec.accelerator.vendor != "None"
    shm_volume, shm_mount = shared_memory("64Gi" if on_gpu else "512Mi")
    command = [
        *("python", "-m", "rstar2_train.launch.pod", "launch", "--job", names.JOB_FILE),
        *("--state", names.state_folder(built.name), "--stage", stage.name, "--attempt", str(wanted.number)),
        *("--nodes", str(replicas), "--subdomain", names.trainer(built.name)),
        *("--progress", names.progress(built.name)),
    ]
    if stage.needs_engines:
        command += ["--engines", f"{names.rollout(built.name)}:{names.ENGINE_PORT}"]
        command += ["--judge", f"http://{names.judge(built.name)}:{names.JUDGE_PORT}"]
    container = Container(
        name="trainer",
        image=image(trainer.image, built.settings.trainer_image, built),
        command=command,
        env=RAY_ENVIRONMENT,
        tuning=accelerator.environment(built) if learns else {},
        env_from=[built.job.spec.tracking.mlflow.secret_ref],
        secrets={ENGINE_TOKEN: "engine-token", JUDGE_TOKEN: "judge-token"},
        fields={"POD_IP": "status.podIP", "POD_NAMESPACE": "metadata.namespace"},
        ports={"ray": ports.RAY},
        mounts=[job_mount, shm_mount, *mounts],
        resources=_resources(built, learns=learns),
    )
    extra: Manifest = {
        "restartPolicy": "Never",
        "subdomain": names.trainer(built.name),
        "terminationGracePeriodSeconds": trainer.termination_grace_period_seconds,
    }
    pod = PodTemplate(
        role="trainer",
        containers=[container],
        volumes=[job_volume, shm_volume, *volumes],
        account=names.trainer(built.name),
        groups=accelerator.groups(built) if learns else (),
        labels=labels,
        extra=extra,
    )
    return template(pod, built)


def _resources(built: BuildContext, *, learns: bool) -> Manifest:
    trainer = built.job.spec.trainer
    asked = resources(trainer.resources)
    if not learns:
        # A filter or an evaluation is driven from a CPU: it must not wait for a trainer's devices.
        return CPU_DRIVER if built.job.spec.accelerator.vendor != "None" else asked
    return merge(merge(asked, accelerator.devices(built, trainer.gpus_per_replica)), accelerator.rdma(built))


def prepare(built: BuildContext) -> Manifest:
    """The Job that makes or fetches data and model, once, before the first stage."""
    site = built.job.spec.secret_refs
    arguments = ["prepare", "--progress", names.progress(built.name)]
    made = _helper(built, "prepare", arguments, env_from=[site.hub_token, site.proxy])
    # The kubelet's own back-off does for a network that is away; wrong data is told at once.
    made["spec"] |= {
        "backoffLimit": 6,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [int(ExitCode.CONFIGURATION)]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            ]
        },
    }
    return made


def report(built: BuildContext, ending: Ending) -> Manifest:
    """The Job that writes the report, sends what is left to MLflow and closes its run."""
    secret = built.job.spec.tracking.mlflow.secret_ref
    made = _helper(built, "report", ["report", "--ending", ending], env_from=[secret])
    made["spec"] |= {"backoffLimit": 2, "activeDeadlineSeconds": 300}
    return made


def _helper(built: BuildContext, role: str, arguments: list[str], *, env_from: list[LocalReference | None]) -> Manifest:
    name = {"prepare": names.prepare, "report": names.report}[role](built.name)
    job_volume, job_mount = job_file(built)
    volumes, mounts = storage(built)
    command = ["python", "-m", "rstar2_train.launch.pod", *arguments[:1], "--job", names.JOB_FILE,
               "--state", names.state_folder(built.name), *arguments[1:]]  # fmt: skip
    container = Container(
        name=role,
        image=image(built.job.spec.trainer.image, built.settings.trainer_image, built),
        command=command,
        env_from=env_from,
        fields={"POD_NAMESPACE": "metadata.namespace"},
        mounts=[job_mount, *mounts],
        resources=CPU_DRIVER,
    )
    pod = PodTemplate(
        role="trainer",
        containers=[container],
        volumes=[job_volume, *volumes],
        account=names.trainer(built.name),
        labels={names.ROLE_LABEL: role},
        extra={"restartPolicy": "Never"},
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": built.labels(role)},
        "spec": {"template": template(pod, built)},
    }
