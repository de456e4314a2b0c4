"""The chart's values of a site: for the pods of all jobs, for the operator's pods and network, and `helm test`."""

from __future__ import annotations

import json
import re
import textwrap

import yaml

from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.validation import load
from tests.chart.conftest import CHART, OPERATOR, Render, Templated, env_of, pods


def test_site_values_reach_the_pods_of_jobs(rendered: Render) -> None:
    """jobPods and registryPrefix arrive as settings that the operator accepts; the prefix precedes all other images."""
    objects = rendered(
        "jobPods.imagePullSecrets={registry,mirror}",
        "jobPods.labels.team=research",
        "jobPods.annotations.cost-centre=7a",
        "jobPods.nodeSelector.pool=train",
        'jobPods.tolerations=[{"key":"gpu","operator":"Exists"}]',
        "registryPrefix=mirror.example.com/hub/",
        "mlflow.enabled=true",
    )
    site = OperatorSettings.from_env({name: value for name, value in env_of(objects).items() if value})
    assert site.registry_prefix == "mirror.example.com/hub/"
    assert site.job_pods is not None
    assert [each.name for each in site.job_pods.image_pull_secrets] == ["registry", "mirror"]
    assert (site.job_pods.labels, site.job_pods.annotations) == ({"team": "research"}, {"cost-centre": "7a"})
    assert site.job_pods.node_selector == {"pool": "train"}
    assert [each.key for each in site.job_pods.tolerations] == ["gpu"]
    images = [container["image"] for pod in pods(objects) for container in pod["containers"]]
    assert len(images) == 2
    assert all(image.startswith("mirror.example.com/hub/ghcr.io/") for image in images)


def test_network_policy_of_operator_allows_its_flows(rendered: Render) -> None:
    """With the policy, the operator is reached on its metrics port alone, and reaches DNS and the API server alone."""
    assert "NetworkPolicy" not in rendered().kinds()
    peer = 'operator.networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]'
    objects = rendered("operator.networkPolicy.enabled=true", "operator.networkPolicy.apiServerPorts={16443}", peer)
    policy = objects.single("NetworkPolicy", OPERATOR)["spec"]
    labels = objects.single("Deployment", OPERATOR)["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = policy["ingress"]
    assert [port["port"] for port in ingress["ports"]] == [8081]
    assert ingress["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 5353, 16443}


def test_operator_spread_selects_its_own_pods(rendered: Render) -> None:
    """The chart completes a topology spread constraint, and adds labels to the pods but not to the selectors."""
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    values = f"operator.topologySpreadConstraints=[{json.dumps(spread)}]", "operator.podLabels.team=platform"
    deployment = rendered(*values).single("Deployment", OPERATOR)["spec"]
    (constraint,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert constraint == {**spread, "labelSelector": deployment["selector"]}
    assert deployment["template"]["metadata"]["labels"]["team"] == "platform"
    assert "team" not in deployment["selector"]["matchLabels"]


# --- helm test ------------------------------------------------------------------------------------------------------


def test_helm_test_runs_a_valid_job_without_gpu(rendered: Render) -> None:
    """The job of `helm test` is valid, asks for no accelerator, and uses trainer, engine and judge."""
    objects = rendered("test.spec.storage.storageClassName=fast", tests=True)
    job = yaml.safe_load(objects.single("ConfigMap", "rstar2-test")["data"]["job.yaml"])
    assert job["metadata"] == {"name": "rstar2-test", "namespace": "site"}
    checked = load(job)
    assert (checked.spec.accelerator.vendor, checked.spec.trainer.gpus_per_replica) == ("None", 0)
    assert checked.spec.needs_judge
    assert {stage.type for stage in checked.spec.stages} == {"SFT", "GRPO"}
    assert (checked.spec.storage.storage_class_name, checked.spec.storage.reclaim_policy) == ("fast", "Delete")


def test_helm_test_with_the_gpu_values_of_the_page(rendered: Render) -> None:
    """docs/installation.md has values for images of GPUs: one GPU for the trainer, one for the engine."""
    page = (CHART.parents[1] / "docs" / "installation.md").read_text("utf-8")
    (block,) = re.findall(r"^( *# gpu-test\.yaml\n.*?)^ *```", page, flags=re.DOTALL | re.MULTILINE)
    values = yaml.safe_load(textwrap.dedent(block))
    objects = rendered(f"test.spec={json.dumps(values['test']['spec'])}", tests=True)
    job = load(yaml.safe_load(objects.single("ConfigMap", "rstar2-test")["data"]["job.yaml"]))
    assert (job.spec.accelerator.vendor, job.spec.trainer.gpus_per_replica) == ("NVIDIA", 1)
    assert (job.spec.rollout.replicas, job.spec.rollout.tensor_parallel) == (1, 1)
    assert job.spec.rollout.engine_args["dtype"] == "bfloat16"


def test_helm_test_account_may_only_handle_jobs(rendered: Render) -> None:
    """The test's account has three verbs on jobs in the job's namespace; every object is a hook."""
    objects = rendered("watchNamespaces={team-a,team-b}", tests=True)
    (rule,) = objects.single("Role", "rstar2-test", "team-a")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["agenticrljobs"], ["create", "get", "delete"])
    assert all(obj["metadata"]["annotations"]["helm.sh/hook"] == "test" for obj in objects)
    pod = objects.single("Pod", "rstar2-test")["spec"]
    assert pod["serviceAccountName"] == "rstar2-test"
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_helm_test_outside_watched_namespaces_is_rejected(templated: Templated) -> None:
    """A test whose job no operator would see is refused when it is rendered."""
    done = templated("watchNamespaces={team-a}", "test.namespace=other", tests=True)
    assert "test.namespace: the operator does not watch other; watchNamespaces has team-a" in done.stderr
