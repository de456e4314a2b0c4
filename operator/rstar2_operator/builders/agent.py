"""The pods that run an agent's programs: one Deployment, and a ConfigMap with the runner that starts the programs.

They run a user's image: no volume of the job, no client, and no egress but to the trainer's endpoint and DNS. Their
token gets them episodes; each episode has a key of its own.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders import config
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext, Container, PodTemplate, deployment, template
from rstar2_train.utils import agent_runner, ports
from rstar2_train.utils.auth import AGENT_TOKEN

BOOT_SECONDS = 600
"""Seconds until a rollout of the Deployment without progress counts as failed."""
FOLDER = "/etc/rstar2/agent"
FILE = "agent_runner.py"


def agent(context: BuildContext) -> list[Manifest]:
    """Return ConfigMap and Deployment; nothing for a job without an agent of its own."""
    spec = context.job.spec.agent
    if spec is None or spec.image is None:
        return []
    name, labels = names.agent(context.name), context.labels("agent")
    container = Container(
        name="agent",
        image=spec.image,
        command=[
            *("python3", f"{FOLDER}/{FILE}", f"{names.trainer(context.name)}:{ports.AGENT}"),
            *(str(spec.max_concurrent_episodes), *spec.command),
        ],
        secrets={AGENT_TOKEN: config.AGENT_TOKEN},
        mounts=[{"name": "runner", "mountPath": FOLDER, "readOnly": True}],
    )
    pod = PodTemplate(role="agent", containers=[container], volumes=[{"name": "runner", "configMap": {"name": name}}])
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels},
            "data": {FILE: agent_runner.source()},
        },
        deployment(name, labels, spec.replicas, template(pod, context), deadline=BOOT_SECONDS),
    ]
