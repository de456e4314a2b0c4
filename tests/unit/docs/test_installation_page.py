"""docs/installation.md has the rights of the operator that the chart grants, and the versions of the tests."""

from __future__ import annotations

import re

from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "installation.md").read_text("utf-8")
RULE = re.compile(r"- apiGroups: \[(?P<group>.*)\]\n  resources: \[(?P<resources>.*)\]\n  verbs: \[(?P<verbs>.*)\]")
SAME_NAME = "events.k8s.io"
"""Group with a resource that the core group has too: the page names the group."""


def test_installation_page_has_the_rights_of_the_chart() -> None:
    """One row per rule of the template, with its verbs; what needs Kueue is marked."""
    template = (ROOT / "helm" / "rstar2" / "templates" / "rbac.yaml").read_text("utf-8")
    rules = template.partition('define "rstar2.rules"')[2].partition('define "rstar2.clusterRules"')[0]
    always, _, kueue = rules.partition("{{- if .Values.kueue.enabled }}")
    expected = [
        (f"{prefix}{_objects(rule['resources'], rule['group'])}", rule["verbs"])
        for part, prefix in ((always, ""), (kueue, "with `kueue.enabled`: "))
        for rule in RULE.finditer(part)
    ]
    table = PAGE.partition("\n## Rights\n")[2].partition("\nFurther rights:\n")[0]
    assert re.findall(r"^\| ([^|]*`[^|]*) \| ([^|]*) \|$", table, re.MULTILINE) == expected


def test_installation_page_has_the_version_of_helm() -> None:
    """The one that the tests build."""
    module = (ROOT / "tests" / "kube_node" / "tools" / "cluster" / "go.mod").read_text("utf-8")
    (version,) = re.findall(r"helm\.sh/helm/v3 v(\d+\.\d+)", module)
    assert f"The tests run helm {version};" in PAGE


def _objects(resources: str, group: str) -> str:
    listed = ", ".join(f"`{name}`" for name in resources.split(", "))
    return f"{listed} of `{group}`" if group == SAME_NAME else listed
