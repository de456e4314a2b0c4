"""What a job's pods share: the job file, the progress ConfigMap, and the Secret with passwords and keys."""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_operator import names
from rstar2_operator.build.pod import Built, Manifest


def config(built: Built) -> list[Manifest]:
    """The job file (and the job as its user wrote it), and the ConfigMap that only the driver writes data into."""
    labels = names.labels(built.name, "config")
    files = {"job.json": built.located, "source.json": built.job}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.job_file(built.name), "labels": labels},
            "data": {
                name: json.dumps(job.model_dump(mode="json", exclude_none=True), indent=1, sort_keys=True)
                for name, job in files.items()
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.progress(built.name), "labels": labels},
        },
    ]


def secret(built: Built) -> Manifest:
    """Fresh passwords and keys. Created once and never written again: the pods hold what the first one said."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    data: dict[str, bytes] = {
        "redis-password": secrets.token_urlsafe(32).encode(),
        "judge-token": secrets.token_urlsafe(32).encode(),
        "engine-token": secrets.token_urlsafe(32).encode(),
        "worker-key": private,
        "worker-public-key": public,
    }
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secrets(built.name), "labels": names.labels(built.name, "config")},
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    return made
