"""The chart, rendered by helm with its switches on and off: its objects, their rights, values and notes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import rstar2_train
from rstar2_operator import names
from rstar2_operator.apply import CREATE_ONLY
from rstar2_operator.builders.access import access
from rstar2_operator.builders.objects import build_context
from rstar2_operator.cache import NODE
from rstar2_operator.client import KINDS
from rstar2_operator.decide.pruning import PRUNED
from rstar2_operator.informer import CHILDREN, QUOTA, WARNING
from rstar2_operator.settings import PREFIX, OperatorSettings
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from rstar2_train.launch.doctor.cluster import examine
from tests.chart.conftest import CHART, OPERATOR, Render, Templated, env_of, pods, settings
from tests.cluster import project_images

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
    "admissionPolicy=false",
)


@pytest.mark.parametrize("values", [(), ("nameOverride=trainer", "fullnameOverride=other")])
def test_chart_operator_is_known_to_doctor(rendered: Render, values: tuple[str, ...]) -> None:
    """`rstar2 doctor --cluster` reads the labels of the Deployment, so it may have any name."""
    (deployment,) = (obj for obj in rendered(*values) if obj["kind"] == "Deployment")
    objects = {"deployments": [deployment | {"status": {"readyReplicas": 1}}]}
    (finding,) = (item for item in examine(objects.get) if item.subject == "operator")
    assert finding.state == "ok", finding


@pytest.mark.parametrize("values", [(), ALL_ON, ALL_OFF], ids=["default", "on", "off"])
def test_chart_with_any_switches_passes_strict_lint(helm: str, values: tuple[str, ...]) -> None:
    """`helm lint --strict` accepts the defaults, all switches on, and all switches off."""
    command = [helm, "lint", "--strict", str(CHART), *settings(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_chart_by_default_has_definition_and_operator(rendered: Render) -> None:
    """The defaults install the CRD, the rights and two replicas of the operator, of which one may be drained."""
    objects = rendered()
    assert objects.kinds() == [
        *("ClusterRole", "ClusterRole", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Deployment"),
        *("PodDisruptionBudget", "Role", "RoleBinding", "Service", "ServiceAccount"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    ]
    assert objects.single("Deployment", OPERATOR)["spec"]["replicas"] == 2
    budget = objects.single("PodDisruptionBudget", OPERATOR)["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_chart_with_all_on_renders_optional_objects(rendered: Render) -> None:
    """Every switch adds its objects, and the site's values arrive in the operator's pod."""
    objects = rendered(*ALL_ON)
    assert set(objects.kinds()) >= {
        *("RuntimeClass", "PersistentVolumeClaim", "Secret", "ConfigMap"),
        *("ServiceMonitor", "PrometheusRule"),
    }
    sandbox = objects.single("RuntimeClass", "gvisor")
    assert (sandbox["handler"], sandbox["scheduling"]) == ("runsc", {"nodeSelector": {"sandbox": "yes"}})
    pod = objects.single("Deployment", OPERATOR)["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert env_of(objects)["HTTPS_PROXY"] == "http://proxy:3128"


def test_chart_with_all_off_renders_operator_alone(rendered: Render) -> None:
    """With all switches off, the Deployment and its Service stay, and the pod uses the named account."""
    objects = rendered(*ALL_OFF)
    assert objects.kinds() == ["Deployment", "Service"]
    assert pods(objects)[0]["serviceAccountName"] == "mine"


def test_crd_after_uninstall_is_kept_unless_disabled(rendered: Render) -> None:
    """crds.keep decides whether `helm uninstall` keeps the CRD and all jobs; if not, a hook deletes the jobs first."""
    name = "agenticrljobs.rstar2.dev"
    kept = rendered().single("CustomResourceDefinition", name)["metadata"]
    assert kept["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "Job" not in rendered().kinds()
    objects = rendered("crds.keep=false", "watchNamespaces={team-a}")
    assert "annotations" not in objects.single("CustomResourceDefinition", name)["metadata"]
    hook = objects.single("Job", f"{OPERATOR}-uninstall")
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (container,) = hook["spec"]["template"]["spec"]["containers"]
    assert {"name": "RSTAR2_WATCH_NAMESPACES", "value": "team-a"} in container["env"]


def test_objects_of_a_second_release_have_its_name(rendered: Render) -> None:
    """Two releases do not share an object, and a Service selects the pods of its own release."""
    objects = rendered(*ALL_ON, release="blue")
    for obj in objects:
        if obj["kind"] == "CustomResourceDefinition":
            continue
        assert obj["metadata"]["labels"]["app.kubernetes.io/instance"] == "blue", obj["metadata"]
        assert obj["metadata"]["name"].startswith(("blue-rstar2", "site-blue-rstar2", "gvisor")), obj["metadata"]
    for kind in ("Deployment", "Service"):
        assert objects.single(kind, "blue-rstar2-operator")["metadata"]["namespace"] == "site"
    selector = objects.single("Service", "blue-rstar2-operator")["spec"]["selector"]
    labels = objects.single("Deployment", "blue-rstar2-operator")["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert names.MANAGED_BY not in selector  # the operator's own pods must not match a job's selector


def test_operator_env_matches_its_settings(rendered: Render) -> None:
    """The chart sets exactly the variables that OperatorSettings reads, and the defaults of both agree."""
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
    """All pods meet the restricted Pod Security Standard, with a read-only root file system and a memory limit."""
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
    """Return (group, resource, verb) of the rules without resourceNames."""
    return {
        (group, resource, verb)
        for rule in rules
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


READ_ONLY = frozenset(
    {
        *("ResourceFlavor", "PriorityClass", "WorkloadPriorityClass", "RuntimeClass"),
        *("ResourceClaim", "ResourceClaimTemplate"),
    }
)
"""Kinds whose objects the operator only reads."""


def needed() -> set[tuple[str, str, str]]:
    """Return the (group, resource, verb) of all requests that the tables of the operator name."""
    requests = set()
    for kind, (path, plural) in KINDS.items():
        group = path.removeprefix("apis/").partition("/")[0] if path.startswith("apis/") else ""
        if kind in (*CHILDREN, *QUOTA, WARNING, NODE):
            requests |= {(group, plural, verb) for verb in ("list", "watch")}
        if kind in ("Lease", WARNING, NODE):
            continue  # the Lease has a Role of its own, and Warnings and nodes are only read
        if kind == "Pod":
            requests.add((group, plural, "delete"))
        elif kind == "AgenticRLJob":
            requests |= {(group, plural, verb) for verb in ("list", "watch", "patch", "delete")}
            requests |= {(group, f"{plural}/status", "patch")}
        elif kind in READ_ONLY:
            requests.add((group, plural, "get"))
        elif kind in ("Event", "Secret"):
            requests.add((group, plural, "create"))
        else:
            requests |= {(group, plural, verb) for verb in ("get", "create")}
            if kind not in CREATE_ONLY:
                requests.add((group, plural, "patch"))
            if kind == "Workload":
                requests.add((group, f"{plural}/status", "patch"))
            if kind in {*PRUNED, "Job", "Workload"}:  # garbage collection deletes the others with their owner
                requests.add((group, plural, "delete"))
    return requests


def test_rights_cover_the_requests_of_the_operator(rendered: Render) -> None:
    """The ClusterRole allows each request that the operator sends, and little else."""
    objects = rendered("kueue.enabled=true")
    rules = [
        rule
        for name in ("site-rstar2-operator", "site-rstar2-operator-kueue")
        for rule in objects.single("ClusterRole", name)["rules"]
    ]
    assert needed() - allowed(rules) == set()
    beyond = allowed(rules) - needed()
    assert {(group, resource) for group, resource, _ in beyond} <= {
        ("rstar2.dev", "agenticrljobs/finalizers"),
        ("", "events"),
    }


def test_rights_of_kueue_are_to_read_jobs(rendered: Render) -> None:
    """Kueue reads the owner of a batch Job, to leave it alone; its account gets nothing else."""
    objects = rendered("kueue.enabled=true", "kueue.serviceAccount.namespace=quota")
    name = "site-rstar2-operator-kueue-owners"
    (rule,) = objects.single("ClusterRole", name)["rules"]
    assert (rule["resources"], rule["verbs"]) == (["agenticrljobs"], ["get", "list", "watch"])
    (subject,) = objects.single("ClusterRoleBinding", name)["subjects"]
    assert (subject["name"], subject["namespace"]) == ("kueue-controller-manager", "quota")


def test_rights_have_no_wildcard_and_no_secret_reads(rendered: Render) -> None:
    """No rule has a wildcard or an escalating verb, and Secrets can only be created."""
    objects = rendered(*ALL_ON)
    for obj in objects:
        for rule in obj.get("rules") or ():
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["create"]


def test_rights_include_those_granted_to_jobs(rendered: Render) -> None:
    """RBAC rejects a Role with rights that its creator does not have."""
    job = load(read_manifest(CHART.parents[1] / "examples" / "tiny.yaml"))
    (role,) = (obj for obj in access(build_context(job, OperatorSettings())) if obj["kind"] == "Role")
    grants = allowed([{key: value for key, value in rule.items() if key != "resourceNames"} for rule in role["rules"]])
    assert grants
    assert grants <= allowed(rendered().single("ClusterRole", "site-rstar2-operator")["rules"])


def test_rights_with_namespaces_are_no_cluster_rights(rendered: Render) -> None:
    """watchNamespaces replaces the cluster-wide binding by a Role in each namespace."""
    objects = rendered(*ALL_ON)
    assert "ClusterRoleBinding" not in objects.kinds()
    for namespace in ("team-a", "team-b"):
        of_cluster = {"kueue.x-k8s.io", "priorityclasses", "runtimeclasses", "nodes"}
        namespaced = {each for each in needed() if not {each[0], each[1]} & of_cluster}
        assert namespaced <= allowed(objects.single("Role", OPERATOR, namespace)["rules"])
        binding = objects.single("RoleBinding", OPERATOR, namespace)
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "site"}]
    lease = objects.single("Role", f"{OPERATOR}-lease", "site")["rules"]
    assert lease[1]["resourceNames"] == [env_of(objects)["RSTAR2_LEASE_NAME"]]


# --- values, notes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
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
        ("jobPods.env=x", "jobPods"),
        ("jobPods.labels.rstar2\\.dev/role=trainer", "labels"),
        ("operator.podLabels.app\\.kubernetes\\.io/name=x", "podLabels"),
        ("registryPrefix=https://mirror.example.com", "registryPrefix"),
        ("operator.networkPolicy.ports={443}", "networkPolicy"),
        ("test.command=x", "test"),
        ("mlflow.resources.requests.cpu=much", "cpu"),
    ],
)
def test_schema_with_wrong_value_names_the_field(templated: Templated, value: str, name: str) -> None:
    """values.schema.json rejects a wrong value, and the message names the field."""
    done = templated(value)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert name in done.stderr


def test_gpu_groups_above_a_million_stay_integers(rendered: Render) -> None:
    """Helm parses numbers as floats; the rendered group id has no exponent."""
    for value in ("operator.gpuGroups={44,1234567}", "operator.gpuGroups=[44,1234567]"):  # the second as JSON: floats
        assert env_of(rendered(value))["RSTAR2_GPU_GROUPS"] == "44,1234567"


@pytest.mark.parametrize("name", ["image.tag", "mlflow.image.tag"])
def test_tag_of_digits_alone_is_rejected_with_advice(templated: Templated, name: str) -> None:
    """The message names the value and asks for quotes."""
    done = templated(f"{name}=20261122", "mlflow.enabled=true")
    assert f"{name}: is read as a number; quote it in a values file, or give it as --set-string" in done.stderr


def test_env_that_the_chart_sets_is_rejected(templated: Templated) -> None:
    """operator.env cannot replace a variable that another value sets."""
    done = templated('operator.env=[{"name":"RSTAR2_WORKERS","value":"9"}]')
    assert "operator.env: RSTAR2_WORKERS is set by the chart, from its other values" in done.stderr


def test_account_without_create_needs_a_name(templated: Templated) -> None:
    """serviceAccount.create=false without a name is rejected."""
    done = templated("serviceAccount.create=false")
    assert "serviceAccount.name: name the account" in done.stderr


def test_notes_list_the_next_three_commands(helm: str, tmp_path: Path) -> None:
    # helm prints notes only at an installation, which needs a cluster: here they become an object of a copied chart.
    """The notes fit the values: namespace, passwords of MLflow, the RuntimeClass."""
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


def test_app_version_is_the_version_of_the_package() -> None:
    """appVersion, and with it the default images, follows rstar2_train.__version__."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == rstar2_train.__version__


def test_documented_set_options_render(templated: Templated) -> None:
    """Each `--set` of README and docs names an existing value; together they replace all public images."""
    root = CHART.parents[1]
    texts = [path.read_text() for path in (root / "README.md", *root.glob("docs/*.md"), *root.glob("images/*.md"))]
    options = {value for text in texts for value in re.findall(r"--set '?([^\s`']+)", text)}
    assert {value.partition("=")[0] for value in options} >= {"image.repository", "image.tag", "jobImages.judge"}
    done = templated(*(value.replace("$REGISTRY", "registry.example.org/rstar2") for value in options))
    assert done.returncode == 0, done.stderr
    assert "ghcr.io" not in done.stdout


def test_images_of_the_test_cluster_are_local(rendered: Render) -> None:
    """With the values of the cluster tests, no image comes from a registry."""
    objects = rendered(*project_images.values())
    named = [value for name, value in env_of(objects).items() if name.endswith("_IMAGE")]
    named += [container["image"] for pod in pods(objects) for container in pod["containers"]]
    assert len(named) == 5
    assert all(name.startswith("rstar2.test/") for name in named), named
