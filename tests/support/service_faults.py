"""Faults of tools, servers, rewards, storage and Secrets, as a part of manifests.py."""

from __future__ import annotations

from tests.support.good_manifest import GOOD, Fault, in_bucket

SERVICE_FAULTS: list[Fault] = [
    ("spec.tools", [{"name": "f"}], "spec.tools[0].source: is required: 'f' is not a built-in tool", None),
    ("spec.tools", [{"name": "jupyter_code"}], "is selected by spec.rollout.tool, as the only tool", None),
    (
        "spec.tools",
        [{"name": "execute_python_code_with_standard_io", "source": "pvc://a/f.py"}],
        "is the name of a built-in tool",
        None,
    ),
    ("spec.tools", [{"name": "f", "source": "ftp://a/f.py"}], "allowed: pvc://CLAIM/PATH", None),
    (
        "spec.tools",
        [{"name": "f", "source": "pvc://a/f.py", "memory": "2Gi"}],
        "must be between 32Mi and spec.judge.limits.memory, which is 512Mi",
        None,
    ),
    ("spec.tools", [{"name": "f", "server": "s"}], "must name an entry of spec.mcpServers; this job has none", None),
    ("spec.mcpServers", [{"name": "s"}], "spec.mcpServers[0].url: set either url or command", None),
    ("spec.mcpServers", [{"name": "s", "url": "tools:8000"}], "must start with http:// or https://", None),
    (
        "spec.mcpServers",
        [{"name": "s", "command": ["serve"], "secretRef": {"name": "tools", "key": "token"}}],
        "a server on stdio has no bearer token",
        None,
    ),
    ("spec.environments", [{"name": "e"}], "set command (or image in a cluster), or the url", None),
    ("spec.environments", [{"name": "e", "url": "games:8000"}], "must start with http:// or https://", None),
    ("spec.environments", [{"name": "e", "url": "http://g", "image": "g"}], "nothing is started then", None),
    ("spec.rewards", [{"name": "r", "type": "Program"}], "is required if type is Program", None),
    ("spec.rewards", [{"name": "r", "source": "pvc://a/c.py"}], "is only allowed if type is Program", None),
    (
        "spec.storage.endpointUrl",
        "https://user:secret@s3.example.org",
        "http:// or https://, a host and optionally a port, without user, path and query",
        "spec.storage.endpointUrl in body should match",
    ),
    (
        "spec.storage.url",
        "s3://bucket/../x",
        "spec.storage.url is 's3://bucket/../x': allowed: s3://BUCKET/PREFIX",
        "url",
    ),
    ("spec.storage.url", "s3://b", "allowed: s3://BUCKET/PREFIX", "spec.storage.url in body should match"),
    ("spec.storage", {"url": "s3://team/runs", "claimName": "a"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "s3://b-c/r", "storageClassName": "a"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "file:///runs", "claimName": "a"}, "together with url", "is only for `rstar2 run`"),
    ("spec.storage", {"url": "s3://team/runs", "reclaimPolicy": "Delete"}, "together with url", "remove claimName"),
    ("spec.storage", {"url": "s3://b-c/r", "accessModes": ["ReadWriteOnce"]}, "together with url", "remove claimName"),
    (
        "spec",
        {**in_bucket(claimName="a"), "rollout": {"weightTransport": "Collective"}},
        "together with url",
        "must not be Collective",
    ),
    ("spec.storage", {"claimName": "a", "size": "1Gi"}, "together with claimName", "together with claimName"),
    (
        "spec.storage.size",
        "big",
        "spec.storage.size is 'big': should be an integer or a quantity in quotes",
        "spec.storage.size in body should match",
    ),
    (
        "spec.mcpServers",
        [{"name": "s", "url": "http://tools:8000/mcp", "secretRef": {"name": "tools"}}],
        "spec.mcpServers[0].secretRef.key: is required",
        "secretRef.key: Required value",
    ),
    (
        "spec.secretRefs.hubToken",
        "hub",
        "spec.secretRefs.hubToken is 'hub': should be an object with the fields name, key",
        "spec.secretRefs.hubToken in body must be of type object",
    ),
    ("spec.storage.size", "0Gi", "spec.storage.size is '0Gi': must be greater than 0", None),
    (
        "spec.tools",
        [{"name": "f", "server": "s", "source": "pvc://a/f.py"}],
        "must not be set together with server",
        None,
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "agent": {"command": ["a"], "image": "a:1"},
            "tools": [{"name": "f", "source": "pvc://a/f.py"}],
        },
        "spec.tools: must not be set together with agent",
        None,
    ),
]
