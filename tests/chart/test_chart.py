"""The chart, rendered by helm with its switches on and off: which objects, and whether they are what they should be."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import rstar2_train
from rstar2_operator import names
from rstar2_operator.apply import CREATE_ONLY
from rstar2_operator.builders.access import access
from rstar2_operator.builders.objects import build_context
from rstar2_operator.client import KINDS
from rstar2_operator.decide.pruning import PRUNED
from rstar2_operator.settings import PREFIX, OperatorSettings
from rstar2_operator.watch import CHILDREN
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from tests.chart.conftest import CHART, Objects, Templated, settings
from tests.cluster import project_images

Render = Callable[..., Objects]

ALL_ON = (
    "runtimeClass.create=true",
    "runtimeClass.nodeSelector.sandbox=yes",
    "mlflow.enabled=true",
    "mlflow.allowedHosts={mlflow.example.com}",
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.serviceMonitor.labels.release=prometheus",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
    "watchNamespaces={team-a,team-b}",
    "imagePullSecrets={registry}",
    "operator.priorityClassName=high",
    'operator.tolerations=[{"key":"system","operator":"Exists"}]',
    'operator.env=[{"name":"HTTPS_PROXY","value":"http://proxy:3128"}]',
)
ALL_OFF = (
    "crds.install=false",
    "serviceAccount.create=false",
    "serviceAccount.name=mine",
    "rbac.create=false",
    "rbac.aggregate=false",
    "operator.podDisruptionBudget=false",
)
OPERATOR = "rstar2-operator"


def pods(objects: Objects) -> list[dict]:
    return [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]


def env_of(objects: Objects) -> dict[str, str]:
    containers = objects.one("Deployment", OPERATOR)["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in containers[0]["env"]}


@pytest.mark.parametrize("values", [(), ALL_ON, ALL_OFF], ids=["default", "on", "off"])
def test_lint(helm: str, values: tuple[str, ...]) -> None:
    command = [helm, "lint", "--strict", str(CHART), *settings(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_default_is_definition_and_operator(rendered: Render) -> None:
    objects = rendered()
    assert objects.kinds() == [
        *("ClusterRole", "ClusterRole", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Deployment"),
        *("PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount"),
    ]
    assert objects.one("Deployment", OPERATOR)["spec"]["replicas"] == 2
    assert objects.one("PodDisruptionBudget", OPERATOR)["spec"]["maxUnavailable"] == 1


def test_everything_on(rendered: Render) -> None:
    objects = rendered(*ALL_ON)
    assert set(objects.kinds()) >= {
        *("RuntimeClass", "PersistentVolumeClaim", "Secret", "ConfigMap"),
        *("ServiceMonitor", "PrometheusRule"),
    }
    sandbox = objects.one("RuntimeClass", "gvisor")
    assert (sandbox["handler"], sandbox["scheduling"]) == ("runsc", {"nodeSelector": {"sandbox": "yes"}})
    pod = objects.one("Deployment", OPERATOR)["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert env_of(objects)["HTTPS_PROXY"] == "http://proxy:3128"


def test_everything_off(rendered: Render) -> None:
    objects = rendered(*ALL_OFF)
    assert objects.kinds() == ["Deployment", "Service"]
    assert pods(objects)[0]["serviceAccountName"] == "mine"


def test_the_definition_outlives_the_release_unless_told_otherwise(rendered: Render) -> None:
    name = "agenticrljobs.rstar2.dev"
    kept = rendered().one("CustomResourceDefinition", name)["metadata"]
    assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in rendered("crds.keep=false").one("CustomResourceDefinition", name)["metadata"]


def test_objects_carry_their_release(rendered: Render) -> None:
    objects = rendered(*ALL_ON, release="blue")
    for one in objects:
        if one["kind"] == "CustomResourceDefinition":
            continue
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "blue", one["metadata"]
        assert one["metadata"]["name"].startswith(("blue-rstar2", "site-blue-rstar2", "gvisor")), one["metadata"]
    for kind in ("Deployment", "Service"):
        assert objects.one(kind, "blue-rstar2-operator")["metadata"]["namespace"] == "site"
    selector = objects.one("Service", "blue-rstar2-operator")["spec"]["selector"]
    labels = objects.one("Deployment", "blue-rstar2-operator")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert names.MANAGED_BY not in selector  # the operator's own pods must not look like a job's


def test_the_operator_reads_every_setting(rendered: Render) -> None:
    env = {name: value for name, value in env_of(rendered(*ALL_ON)).items() if name.startswith(PREFIX)}
    fields = {PREFIX + name.upper() for name in OperatorSettings.__dataclass_fields__}
    assert set(env) == fields
    read = OperatorSettings.from_env({name: value for name, value in env.items() if name != "RSTAR2_IDENTITY"})
    assert read.watch_namespaces == ("team-a", "team-b")
    assert read.gpu_groups == (44, 109, 992)
    assert read.lease_namespace == "site"
    assert read.trainer_image == f"ghcr.io/rstar2/trainer:{rstar2_train.__version__}"
    assert read.mlflow_uri == "http://rstar2-mlflow.site.svc.cluster.local:5000"
    assert OperatorSettings.from_env(
        {"RSTAR2_WATCH_NAMESPACES": env_of(rendered())["RSTAR2_WATCH_NAMESPACES"]}
    ) == OperatorSettings(identity=OperatorSettings().identity)


@pytest.mark.parametrize("values", [(), ALL_ON], ids=["default", "on"])
def test_pods_pass_the_restricted_level(rendered: Render, values: tuple[str, ...]) -> None:
    for pod in pods(rendered(*values)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] != 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= {
            *("emptyDir", "configMap", "secret", "persistentVolumeClaim"),
        }
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


# --- rights ---------------------------------------------------------------------------------------------------------


def allowed(rules: list[dict]) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of rules without resourceNames."""
    return {
        (group, resource, verb)
        for rule in rules
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed() -> set[tuple[str, str, str]]:
    """What the operator's own tables say that it asks of the API server."""
    asked = {(group, plural, verb) for group, _, plural in CHILDREN for verb in ("list", "watch")}
    asked |= {("", "events", verb) for verb in ("list", "watch")}
    for kind, (path, plural) in KINDS.items():
        group = path.removeprefix("apis/").partition("/")[0] if path.startswith("apis/") else ""
        if kind in ("Lease", "Pod"):
            continue  # the Lease has a Role of its own; pods are only looked at
        if kind == "AgenticRLJob":
            asked |= {(group, plural, verb) for verb in ("list", "watch", "delete")}
            asked |= {(group, f"{plural}/status", "patch")}
        elif kind in ("Event", "Secret"):
            asked.add((group, plural, "create"))
        else:
            asked |= {(group, plural, verb) for verb in ("get", "create")}
            if kind not in CREATE_ONLY:
                asked.add((group, plural, "patch"))
            if kind in {*PRUNED, "Job"}:  # the others go with their owner
                asked.add((group, plural, "delete"))
    return asked


def test_rights_cover_what_the_operator_does(rendered: Render) -> None:
    rules = rendered().one("ClusterRole", "site-rstar2-operator")["rules"]
    assert needed() - allowed(rules) == set()
    beyond = allowed(rules) - needed()
    assert {(group, resource) for group, resource, _ in beyond} <= {
        ("rstar2.dev", "agenticrljobs/finalizers"),
        ("", "events"),
    }


def test_rights_are_no_more_than_that(rendered: Render) -> None:
    objects = rendered(*ALL_ON)
    for one in objects:
        for rule in one.get("rules") or ():
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"]


def test_it_holds_what_it_grants(rendered: Render) -> None:
    """RBAC lets nobody make a Role with rights that he does not have himself."""
    job = load(read_manifest(CHART.parents[1] / "examples" / "tiny.yaml"))
    (role,) = (one for one in access(build_context(job, OperatorSettings())) if one["kind"] == "Role")
    grants = allowed([{key: value for key, value in rule.items() if key != "resourceNames"} for rule in role["rules"]])
    assert grants
    assert grants <= allowed(rendered().one("ClusterRole", "site-rstar2-operator")["rules"])


def test_named_namespaces_get_rights_and_the_cluster_none(rendered: Render) -> None:
    objects = rendered(*ALL_ON)
    assert not [one for one in objects if one["kind"] == "ClusterRoleBinding"]
    for namespace in ("team-a", "team-b"):
        assert needed() <= allowed(objects.one("Role", OPERATOR, namespace)["rules"])
        binding = objects.one("RoleBinding", OPERATOR, namespace)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "site"}]
    lease = objects.one("Role", f"{OPERATOR}-lease", "site")["rules"]
    assert lease[1]["resourceNames"] == [env_of(objects)["RSTAR2_LEASE_NAME"]]


# --- values, notes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("replicas=3", "replicas"),
        ("operator.replicas=0", "operator"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
        ("operator.logFormat=xml", "logFormat"),
        ("mlflow.storage.size=big", "size"),
        ("runtimeClass.create=maybe", "create"),
        ("nameOverride=Foo_Bar", "nameOverride"),
        ("fullnameOverride=My_Op", "fullnameOverride"),
        ("operator.resources.limits.memory=-5", "memory"),
        ("mlflow.resources.requests.cpu=much", "cpu"),
    ],
)
def test_the_schema_names_a_wrong_value(templated: Templated, value: str, said: str) -> None:
    done = templated(value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert said in done.stderr


def test_large_group_ids_are_whole_numbers(rendered: Render) -> None:
    for value in ("operator.gpuGroups={44,1234567}", "operator.gpuGroups=[44,1234567]"):  # the second as JSON: floats
        assert env_of(rendered(value))["RSTAR2_GPU_GROUPS"] == "44,1234567"


@pytest.mark.parametrize("name", ["image.tag", "mlflow.image.tag"])
def test_a_tag_of_digits_alone_is_refused_in_words(templated: Templated, name: str) -> None:
    done = templated(f"{name}=20261122", "mlflow.enabled=true")
    assert f"{name}: is read as a number; quote it in a values file, or give it as --set-string" in done.stderr


def test_a_variable_of_the_charts_own_is_refused_in_words(templated: Templated) -> None:
    done = templated('operator.env=[{"name":"RSTAR2_WORKERS","value":"9"}]')
    assert "operator.env: RSTAR2_WORKERS is set by the chart, from its other values" in done.stderr


def test_an_account_that_is_not_made_must_be_named(templated: Templated) -> None:
    done = templated("serviceAccount.create=false")
    assert "serviceAccount.name: name the account" in done.stderr


def test_notes_say_the_next_three_commands(helm: str, tmp_path: Path) -> None:
    # helm shows notes only at an installation, which needs a cluster: so they become an object of a copied chart.
    chart = shutil.copytree(CHART, tmp_path / "rstar2")
    text = (chart / "templates" / "NOTES.txt").read_text()
    show = '{{- define "notes" -}}' + text + '{{- end }}\nkind: Notes\ntext: {{ include "notes" . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(show)

    def notes(*values: str) -> str:
        command = [helm, "template", "rstar2", str(chart), "-n", "site", "--kube-version", "1.34.0"]
        command += ["--show-only", "templates/notes.yaml", *settings(values)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return str(yaml.safe_load(done.stdout)["text"])

    commands = [line.strip() for line in notes().splitlines() if line.startswith("  kubectl ")]
    assert commands == [
        "kubectl rollout status -n site deployment/rstar2-operator",
        "kubectl apply -n default -f examples/tiny.yaml",
        "kubectl get arl -A -w",
    ]
    assert "RuntimeClass" in notes()
    everything = notes(*ALL_ON)
    assert "kubectl apply -n team-a -f examples/tiny.yaml" in everything
    assert "{{.data.MLFLOW_TRACKING_PASSWORD | base64decode}}" in everything
    assert "runtimeClass.create" not in everything


def test_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == rstar2_train.__version__


def test_documented_values_are_values(templated: Templated) -> None:
    root = CHART.parents[1]
    texts = [path.read_text() for path in (root / "README.md", *root.glob("docs/*.md"), *root.glob("images/*.md"))]
    found = {value for text in texts for value in re.findall(r"--set '?([^\s`']+)", text)}
    assert {value.partition("=")[0] for value in found} >= {"image.repository", "image.tag", "jobImages.judge"}
    done = templated(*(value.replace("$REGISTRY", "registry.example.org/rstar2") for value in found))
    assert done.returncode == 0, done.stderr
    assert "ghcr.io" not in done.stdout


def test_the_test_cluster_pulls_nothing(rendered: Render) -> None:
    objects = rendered(*project_images.values())
    named = [value for name, value in env_of(objects).items() if name.endswith("_IMAGE")]
    named += [container["image"] for pod in pods(objects) for container in pod["containers"]]
    assert len(named) == 5
    assert all(name.startswith("rstar2.test/") for name in named), named
