"""A trained model served on the cluster by the steps of examples/serve.yaml: Secret, apply, port-forward, chat.

The model has memorised one conversation with tool calls. It is in a claim, as a job would have left it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from rstar2_operator import names
from rstar2_operator.serving_manifests import main
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.serving.text import outputs_text
from tests.cluster import jobs, project_images
from tests.cluster.flows import allowed
from tests.kube_node import images, volumes
from tests.kube_node.cluster import Cluster
from tests.kube_node.pods import pod, restricted
from tests.support.engine import (
    FIRST_REPLY,
    FIRST_TURN,
    LAST_TURN,
    QUESTION,
    memorising_model,
    missing_packages,
    random_model,
)

JOB = "smoke"
STAGE = "rl-3"
NAME = names.serving(JOB)
READY_SECONDS = 400
KINDS = (
    "pods,services,deployments,replicasets,statefulsets,jobs,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    "networkpolicies,persistentvolumeclaims"
)
SITE = {
    "RSTAR2_ROLLOUT_IMAGE": images.BASE,
    "RSTAR2_REDIS_IMAGE": images.BASE,
    "RSTAR2_IMAGE_PULL_POLICY": "Never",
}


@dataclass(frozen=True)
class Served:
    """The applied objects and the token of the endpoint."""

    cluster: Cluster
    namespace: str
    file: Path
    token: str

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments)

    def pod(self, role: str) -> str:
        selector = ",".join(
            f"{key}={value}" for key, value in names.labels(NAME, role, manager=names.SERVE_MANAGER).items()
        )
        return self.kubectl("get", "pods", "-l", selector, "-o", "name").strip()

    @contextmanager
    def forwarded(self) -> Iterator[str]:
        """Forward a port to the endpoint; provide its URL on this machine."""
        command = [
            "kubectl",
            "port-forward",
            "-n",
            self.namespace,
            f"service/{names.endpoint(NAME)}",
            f":{names.ENDPOINT_PORT}",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.cluster.environment()) as process:
            try:
                assert process.stdout is not None
                address = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
                assert address, "port-forward failed"
                yield f"http://{address[0]}"
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Apply the objects of `python -m rstar2_operator.serving_manifests` and wait for the endpoint."""
    if reason := missing_packages():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("served")
    namespace = f"t-{folder.name.lower()}-{os.getpid()}"
    cluster.apply([restricted(namespace)])
    cluster.load_image(project_images.archive("judge"))
    data = jobs.example_job(cluster, namespace, "smoke.yaml", executor={"replicas": 1, "cpu": "500m"})
    manifest, file = folder / "job.yaml", folder / "serve.yaml"
    manifest.write_text(yaml.safe_dump(data))
    copy_model(cluster, data, folder)
    jobs.wait_until_alone(cluster)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SITE, "RSTAR2_JUDGE_IMAGE": project_images.reference("judge")}.items():
            patch.setenv(name, value)
        secret = folder / "secret.yaml"
        assert main([str(manifest), "--secret", "--out", str(secret)]) == 0
        assert main([str(manifest), "--executors", "1", "--out", str(file)]) == 0
    cluster.kubectl("create", "-f", str(secret))
    cluster.kubectl("apply", "--server-side", "-f", str(file))
    token = yaml.safe_load(secret.read_text())["data"]["serve-token"]
    applied = Served(cluster, namespace, file, base64.b64decode(token).decode())
    cluster.wait(namespace, f"deployment/{names.endpoint(NAME)}", "condition=Available", READY_SECONDS)
    yield applied
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def copy_model(cluster: Cluster, data: dict[str, Any], folder: Path) -> None:
    """Copy a model to the path in the job's claim where its stage would have exported it."""
    namespace = data["metadata"]["namespace"]
    state = JobState(folder / JOB)
    model = state.stage(STAGE).model
    model.parent.mkdir(parents=True)
    memorising_model(model, base=random_model(folder / "base", seed=0))
    inside, _ = resolved_sources(load(data), names.state_folder(JOB))
    state.job_file.write_text(inside.model_dump_json())
    storage = data["spec"]["storage"]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": names.claim(JOB), "namespace": namespace},
        "spec": {
            "accessModes": storage["accessModes"],
            "storageClassName": volumes.STORAGE_CLASS,
            "resources": {"requests": {"storage": storage["size"]}},
        },
    }
    volume = {"name": "state", "persistentVolumeClaim": {"claimName": names.claim(JOB)}}
    mount = {"name": "state", "mountPath": names.STORAGE_MOUNT}
    cluster.apply([claim, pod(namespace, "writer", volumes=[volume], mounts=[mount])])
    cluster.wait(namespace, "pod/writer", "condition=Ready")
    cluster.kubectl("cp", "-n", namespace, str(state.root), f"writer:{names.STORAGE_MOUNT}/{JOB}")
    cluster.kubectl("delete", "pod", "-n", namespace, "writer")


def test_serve_port_forward_answers_chat(served: Served) -> None:
    """`rstar2 chat` and the OpenAI client get the memorised conversation; a wrong token is rejected."""
    with served.forwarded() as url:
        chat = [sys.executable, "-m", "rstar2_train.cli", "chat", "--url", url, "--temperature", "0", QUESTION]
        env = os.environ | {"RSTAR2_SERVE_TOKEN": served.token, "COLUMNS": "100"}
        done = subprocess.run(chat, env=env, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        print(done.stdout)
        lines = [line.strip("│ ") for line in done.stdout.splitlines()]
        printed = [line for line in lines if line in ("print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}")]
        assert printed == ["print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}"]
        with openai.OpenAI(base_url=f"{url}/v1", api_key=served.token, max_retries=0) as client:
            (model,) = client.models.list()
            assert model.id == f"{JOB}/{STAGE}"
            question = {"role": "user", "content": QUESTION}
            stream = client.chat.completions.create(model=model.id, messages=[question], temperature=0, stream=True)
            pieces = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(pieces) == FIRST_TURN + outputs_text(FIRST_REPLY) + LAST_TURN and len(pieces) > 3
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                stranger.models.list()
            with pytest.raises(openai.AuthenticationError):
                stranger.chat.completions.create(model=model.id, messages=[question])


def test_serve_policies_allow_only_needed_flows(served: Served) -> None:
    """The endpoint reaches engine and judge; no other flow between the pods is allowed."""
    served.cluster.apply([pod(served.namespace, "stranger")])
    served.cluster.wait(served.namespace, "pod/stranger", "condition=Ready")
    endpoint, engine = served.pod("endpoint"), served.pod("rollout")
    ports = {"endpoint": names.ENDPOINT_PORT, "rollout": names.ENGINE_PORT, "judge": names.JUDGE_PORT}
    ports |= {"redis": names.REDIS_PORT, "executor": names.EXECUTOR_PORT}
    addresses = {role: served.kubectl("get", served.pod(role), "-o", "jsonpath={.status.podIP}") for role in ports}
    flows = {
        (endpoint, "rollout"): True,
        (endpoint, "judge"): True,
        (endpoint, "redis"): False,
        (endpoint, "executor"): False,
        (engine, "judge"): False,
        ("pod/stranger", "endpoint"): False,
        ("pod/stranger", "rollout"): False,
        ("pod/stranger", "judge"): False,
    }

    expected = {(source, addresses[role], ports[role]): wanted for (source, role), wanted in flows.items()}
    assert allowed(served.cluster, served.namespace, expected) == expected
    served.kubectl("delete", "pod/stranger")


def test_serve_reapply_keeps_token_delete_keeps_claim(served: Served) -> None:
    """A second apply does not change the token; `kubectl delete` leaves only the claims of the job and of the test."""
    served.kubectl("apply", "--server-side", "-f", str(served.file))
    kept = json.loads(served.kubectl("get", "secret", names.secrets(NAME), "-o", "json"))["data"]["serve-token"]
    assert base64.b64decode(kept).decode() == served.token
    served.kubectl("delete", "-f", str(served.file), "--wait=true")
    own = f"{names.MANAGED_BY}={names.SERVE_MANAGER}"
    deadline = time.monotonic() + 400
    while remaining := served.kubectl("get", KINDS, "-l", own, "-o", "name").split():
        assert time.monotonic() < deadline, remaining
        time.sleep(1)
    rest = set(served.kubectl("get", KINDS, "-o", "name").split())
    machine = {f"persistentvolumeclaim/{name}" for name in volumes.python_folders()}
    of_every_namespace = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
    assert rest - machine - of_every_namespace == {f"persistentvolumeclaim/{names.claim(JOB)}"}
