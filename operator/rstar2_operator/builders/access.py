"""ServiceAccounts: the trainer's may patch one ConfigMap; the account of all other pods has no rights and no token."""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.builders.manifest import Manifest
from rstar2_operator.builders.pod import BuildContext

RBAC = "rbac.authorization.k8s.io"


def access(context: BuildContext) -> list[Manifest]:
    """Return both ServiceAccounts, and the Role and RoleBinding of the trainer's."""
    trainer = names.trainer(context.name)
    labels = context.labels("trainer")
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [names.progress(context.name)],
        "verbs": ["patch"],
    }
    return [
        pods_account(context),
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
            "subjects": [{"kind": "ServiceAccount", "name": account} for account in (trainer, *_patched(context))],
        },
    ]


def _patched(context: BuildContext) -> list[str]:
    """Return the ServiceAccounts that runtimePatches give to trainer, prepare and report pods."""
    roles = {"trainer", "prepare", "report"}
    patches = (patch for patch in context.job.spec.runtime_patches if roles & set(patch.roles))
    return sorted({patch.service_account_name for patch in patches if patch.service_account_name})


def pods_account(context: BuildContext) -> Manifest:
    """Return the ServiceAccount without rights."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.pods_account(context.name), "labels": context.labels("config")},
        "automountServiceAccountToken": False,
    }
