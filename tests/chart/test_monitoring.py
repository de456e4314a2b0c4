"""Alerts, scraping and the dashboard: promtool checks and fires the rules, and every named metric exists."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from rstar2_operator.metrics import Metrics
from tests.chart.conftest import CHART, Objects

Render = Callable[..., Objects]
OPERATOR = "rstar2-operator"
ON = (
    "monitoring.serviceMonitor.enabled=true",
    "monitoring.serviceMonitor.labels.release=prometheus",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
)
CASES = Path(__file__).with_name("alerts.yaml")


def metrics_named(text: str) -> set[str]:
    return set(re.findall(r"\brstar2_(?:operator|job)_[a-z_]+", text))


def existing_metrics() -> set[str]:
    """Return the names of all series that the operator's metrics can have."""
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {metric.name + suffix for metric in Metrics().registry.collect() for suffix in suffixes[metric.type]}


def test_alerts_fire_in_their_cases(rendered: Render, promtool: str, tmp_path: Path) -> None:
    """promtool accepts the rules, and each alert fires in its case of alerts.yaml and not otherwise."""
    rule = rendered(*ON).single("PrometheusRule", OPERATOR)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    (tmp_path / "alerts.yaml").write_text(CASES.read_text())
    for command in (["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"], ["test", "rules", "alerts.yaml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        case["alertname"] for test in yaml.safe_load(CASES.read_text())["tests"] for case in test["alert_rule_test"]
    }
    assert tested == {rule["alert"] for group in rule["spec"]["groups"] for rule in group["rules"]}


def test_service_monitor_selects_the_operator_service(rendered: Render) -> None:
    """The ServiceMonitor selects the Service of the operator, by an existing port."""
    objects = rendered(*ON)
    monitor = objects.single("ServiceMonitor", OPERATOR)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    service = objects.single("Service", OPERATOR)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["honorLabels"] is True


def test_dashboard_panels_use_existing_metrics(rendered: Render) -> None:
    """Each expression names a metric of the operator, and no panel covers another."""
    config = rendered(*ON).single("ConfigMap", "rstar2-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads(config["data"]["rstar2.json"])
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= len(dashboard["panels"]) >= 6
    named = metrics_named(" ".join(expressions))
    assert named <= existing_metrics()
    assert metrics_named((CHART / "files/rules.yaml").read_text()) <= existing_metrics()
    taken = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_monitoring_by_default_adds_no_object(rendered: Render) -> None:
    """Monitoring is off by default."""
    assert not {"ServiceMonitor", "PrometheusRule", "ConfigMap"} & set(rendered().kinds())
