"""A pod that mounts the claims of a job in a cluster, and runs one command of `rstar2` on its state.

The pod is not part of the job: it has its own name and labels, requests little, mounts the claims read-only and has no
token. It is made from the template of the job's newest Job, so that image, user and tolerations fit the cluster. The
pod is deleted with the command. If the command is killed, the pod ends by itself, and with the job.

Users: `cluster_view.py`, `cluster_verify.py`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rstar2_train.cli.job_timeline import ROLE_LABEL
from rstar2_train.cli.kubectl import JOB_LABEL, KIND, Kubectl, KubectlFailed
from rstar2_train.utils.options import count

START_SECONDS = 300
POLL_SECONDS = 1.0
LIFE_SECONDS = 12 * 3600
"""Time after which the pod of a killed command ends."""
ENDED = ("Succeeded", "Failed")
RESOURCES = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}}
OWNED = ("rstar2.dev/", "app.kubernetes.io/", "batch.kubernetes.io/", "kueue.x-k8s.io/")
"""Prefixes of labels and annotations by which others select or own the job's pods."""
OWNED_NAMES = ("controller-uid", "job-name")
POD_FIELDS = (
    *("serviceAccountName", "enableServiceLinks", "securityContext", "imagePullSecrets", "nodeSelector"),
    *("affinity", "tolerations", "runtimeClassName"),
)
"""Fields of the template that the pod keeps."""
CONTAINER_FIELDS = ("image", "imagePullPolicy", "securityContext")


def add_timeout_option(parser: argparse.ArgumentParser) -> None:
    """Add --timeout."""
    parser.add_argument(
        "--timeout",
        type=count,
        default=START_SECONDS,
        metavar="SECONDS",
        help="time for the pod to start (default: %(default)s)",
    )


@contextmanager
def state_pod(kubectl: Kubectl, name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Run `rstar2 ARGUMENTS --state FOLDER` in a pod on the state of job `name`; yield the name of the pod.

    The pod is deleted at the end, also after SIGTERM, which raises KeyboardInterrupt. Raises KubectlFailed.
    """
    pod = _placed(kubectl, name, arguments)
    pod_name = pod["metadata"]["name"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        kubectl.text("create", "-f", "-", stdin=json.dumps(pod))
        yield pod_name
    finally:
        try:
            kubectl.text("delete", "pod", pod_name, "--wait=false", "--ignore-not-found")
        except KubectlFailed as error:
            print(f"pod {pod_name} was not deleted: {error}", file=sys.stderr)


def pod_states(kubectl: Kubectl, name: str, *, seconds: int) -> Iterator[dict[str, Any]]:
    """Yield a pod every second once it has started. Print the reasons of its wait.

    Raises KubectlFailed if it does not run after `seconds`.
    """
    print(f"waiting for pod {name} ...", file=sys.stderr, flush=True)
    deadline, printed = time.monotonic() + seconds, ""
    while True:
        pod = kubectl.get("pod", name)
        phase, reason = pod["status"].get("phase"), problem(pod)
        if phase in ("Running", *ENDED):
            yield pod
        elif time.monotonic() > deadline:
            raise KubectlFailed(f"pod {name} does not run after {seconds} s: {reason or phase}")
        if reason not in ("", printed, "ContainerCreating"):
            print(f"pod {name}: {reason}", file=sys.stderr, flush=True)
            printed = reason
        time.sleep(POLL_SECONDS)


def _placed(kubectl: Kubectl, name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the pod for a job of the cluster, on the node of its claim if that is for one node."""
    jobs = kubectl.get("jobs.batch", "-l", f"{JOB_LABEL}={name}")
    pod = pod_of(kubectl.get(KIND, name), newest_template(jobs, name), arguments)
    claim = claim_of(pod)
    modes = kubectl.get("persistentvolumeclaims", claim)["spec"]["accessModes"]
    if not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        pods = kubectl.get("pods", "-l", f"{JOB_LABEL}={name}")
        if (node := node_of_claim(pods, claim, modes)) is not None:
            on_node(pod, node)
    return pod


def newest_template(jobs: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the pod template to start from: of the report, else of the preparation, else of the last attempt.

    The first two suit any node. Raises KubectlFailed if the job has no Job. Pure.
    """
    order = {"report": 2, "prepare": 1}

    def rank(job: Mapping[str, Any]) -> tuple[int, str]:
        labels = job["metadata"].get("labels") or {}
        return order.get(labels.get(ROLE_LABEL, ""), 0), job["metadata"]["creationTimestamp"]

    if not jobs:
        raise KubectlFailed(f"{name} has no Job to take image and claim from: it has not started, or they were deleted")
    template: Mapping[str, Any] = max(jobs, key=rank)["spec"]["template"]
    return template


def pod_of(job: Mapping[str, Any], template: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the pod that runs `rstar2 ARGUMENTS` on a job's state. `template`: of one of its Jobs. Pure.

    Raises KubectlFailed if the job has no claim.
    """
    name, spec, command = job["metadata"]["name"], template["spec"], arguments[0]
    container = spec["containers"][0]
    volumes = [
        volume
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume or volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"
    ]
    claims = {volume["name"] for volume in volumes if "persistentVolumeClaim" in volume}
    kept = {volume["name"] for volume in volumes}
    mounts = [
        {**mount, **({"readOnly": True} if mount["name"] in claims else {})}
        for mount in container["volumeMounts"]
        if mount["name"] in kept
    ]
    if "state" not in claims:  # it is a cache of the bucket, which starts empty
        raise KubectlFailed(
            f"{name} has no claim, because its state is in a bucket: run `rstar2 fetch MANIFEST` on this machine, then "
            f"`rstar2 {command}`"
        )
    state = next(mount["mountPath"] for mount in mounts if mount["name"] == "state")
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": job["metadata"]["uid"]}
    metadata = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{command}-{secrets.token_hex(3)}",
            "labels": {**_free(metadata.get("labels")), f"rstar2.dev/{command}": name},
            "annotations": _free(metadata.get("annotations")),
            "ownerReferences": [owner],
        },
        "spec": {
            **{field: spec[field] for field in POD_FIELDS if field in spec},
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE_SECONDS,
            "terminationGracePeriodSeconds": 1,
            "volumes": volumes,
            "containers": [
                {
                    **{field: container[field] for field in CONTAINER_FIELDS if field in container},
                    "name": command,
                    "command": ["python", "-m", "rstar2_train.cli", *arguments, "--state", state],
                    # Without Secrets: the command needs files only.
                    "env": [variable for variable in container.get("env", []) if "valueFrom" not in variable],
                    "volumeMounts": mounts,
                    "resources": RESOURCES,
                }
            ],
        },
    }


def claim_of(pod: Mapping[str, Any]) -> str:
    """Return the claim with the job's state. Pure."""
    return next(
        str(volume["persistentVolumeClaim"]["claimName"])
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "state"
    )


def node_of_claim(pods: Sequence[Mapping[str, Any]], claim: str, modes: Sequence[str]) -> str | None:
    """Return the node of the pods that have a claim for one node; None if no pod has it.

    Raises KubectlFailed if the claim admits one pod only, and a pod has it. Pure.
    """
    for pod in pods:
        volumes = pod["spec"].get("volumes") or ()
        names = {(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes}
        is_active = pod["status"].get("phase") in ("Pending", "Running")
        if claim in names and is_active and pod["spec"].get("nodeName"):
            if "ReadWriteOncePod" in modes:
                raise KubectlFailed(
                    f"the claim {claim} is ReadWriteOncePod, and pod {pod['metadata']['name']} has it: wait until the "
                    "stage has ended"
                )
            return str(pod["spec"]["nodeName"])
    return None


def on_node(pod: dict[str, Any], node: str) -> None:
    """Bind a pod to a node, in place."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod["spec"]["affinity"] = {"nodeAffinity": required}
    pod["spec"].pop("nodeSelector", None)


def problem(pod: Mapping[str, Any]) -> str:
    """Return why a pod does not run; empty if nothing is known. Pure."""
    status = pod["status"]
    for container in status.get("containerStatuses") or ():
        for state in ("waiting", "terminated"):
            if details := container["state"].get(state):
                return ": ".join(filter(None, (details.get("reason"), details.get("message"))))
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"not scheduled: {condition.get('message', '')}"
    return ": ".join(filter(None, (status.get("reason"), status.get("message"))))


def _free(own: Mapping[str, str] | None) -> dict[str, str]:
    """Return the labels or annotations by which no controller and no policy selects the job's pods."""
    return {key: value for key, value in (own or {}).items() if not key.startswith(OWNED) and key not in OWNED_NAMES}
