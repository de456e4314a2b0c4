"""Objects that a job's pods share: the job file, the progress ConfigMap, and the Secret with passwords and keys."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext
from rstar2_train.api.job import AgenticRLJob

TOKENS = ("redis-password", "judge-token", "engine-token")
"""Keys of the Secret with the tokens by which the pods of a job authenticate to each other."""
AGENT_TOKEN = "agent-token"
"""Key of the token of the pods that run an agent's programs."""


def config(context: BuildContext) -> list[Manifest]:
    """Return the job file (with the original job), and the ConfigMap whose data only the orchestrator writes."""
    return [
        job_file(context, {"job.json": context.resolved, "source.json": context.job}),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.progress(context.name), "labels": context.labels("config")},
        },
    ]


def job_file(context: BuildContext, files: Mapping[str, AgenticRLJob]) -> Manifest:
    """Return the ConfigMap with jobs as JSON, by file name.

    Defaults are omitted, so that pods of an earlier version, which reject fields that they do not know, can read it.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.job_file(context.name), "labels": context.labels("config")},
        "data": {
            name: json.dumps(
                job.model_dump(mode="json", exclude_none=True, exclude_defaults=True), indent=1, sort_keys=True
            )
            for name, job in files.items()
        },
    }


def secret(context: BuildContext, tokens: Sequence[str] = ()) -> Manifest:
    """Return the Secret with new passwords and keys. It is created once and never updated, because pods use it.

    `tokens`: further tokens than TOKENS.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    agent = (AGENT_TOKEN,) if context.job.spec.agent is not None else ()
    data = {name: secrets.token_urlsafe(32).encode() for name in (*TOKENS, *agent, *tokens)}
    data |= {"worker-key": private, "worker-public-key": public}
    return empty_secret(context) | {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}


def empty_secret(context: BuildContext) -> Manifest:
    """Return the Secret without data; pods wait until it has data."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secrets(context.name), "labels": context.labels("config")},
        "type": "Opaque",
    }
