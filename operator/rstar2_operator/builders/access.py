"""Accounts: the trainer's may patch one ConfigMap, the other pods' may do nothing and carry no token."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.pod import BuildContext, Manifest

RBAC = "rbac.authorization.k8s.io"


def access(built: BuildContext) -> list[Manifest]:
    """ServiceAccounts, and the Role and RoleBinding of the trainer's."""
    trainer = names.trainer(built.name)
    labels = built.labels("trainer")
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [names.progress(built.name)],
        "verbs": ["patch"],
    }
    return [
        pods_account(built),
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": trainer, "labels": labels},
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": trainer, "labels": labels},
            "rules": [rule],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": trainer, "labels": labels},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": trainer},
            "subjects": [{"kind": "ServiceAccount", "name": trainer}],
        },
    ]


def pods_account(built: BuildContext) -> Manifest:
    """The ServiceAccount that may do nothing."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.pods_account(built.name), "labels": built.labels("config")},
        "automountServiceAccountToken": False,
    }
