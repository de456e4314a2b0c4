"""What a job's pods share: the job file, the progress ConfigMap, and the Secret with passwords and keys."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_operator import names
from rstar2_operator.builders.pod import BuildContext, Manifest
from rstar2_train.api.job import AgenticRLJob

TOKENS = ("redis-password", "judge-token", "engine-token")
"""Keys of the Secret that hold what the pods of a job show one another."""


def config(built: BuildContext) -> list[Manifest]:
    """The job file (and the job as its user wrote it), and the ConfigMap that only the driver writes data into."""
    return [
        job_file(built, {"job.json": built.located, "source.json": built.job}),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.progress(built.name), "labels": built.labels("config")},
        },
    ]


def job_file(built: BuildContext, files: Mapping[str, AgenticRLJob]) -> Manifest:
    """The ConfigMap with jobs as JSON, by file name.

    Without defaults: pods of an earlier version, which know no field that came since, read it too.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.job_file(built.name), "labels": built.labels("config")},
        "data": {
            name: json.dumps(
                job.model_dump(mode="json", exclude_none=True, exclude_defaults=True), indent=1, sort_keys=True
            )
            for name, job in files.items()
        },
    }


def secret(built: BuildContext, tokens: Sequence[str] = TOKENS) -> Manifest:
    """Fresh passwords and keys. Created once and never written again: the pods hold what the first one said."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    data = {name: secrets.token_urlsafe(32).encode() for name in tokens}
    data |= {"worker-key": private, "worker-public-key": public}
    return empty_secret(built) | {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}


def empty_secret(built: BuildContext) -> Manifest:
    """The Secret with nothing in it: pods wait until somebody fills it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secrets(built.name), "labels": built.labels("config")},
        "type": "Opaque",
    }
