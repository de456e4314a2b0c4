"""Alerts, scraping and the dashboard: promtool checks and fires the rules, and every named metric exists."""

from __future__ import annotations

import itertools
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
AUTOSCALER = Path(__file__).parents[2] / "examples" / "cluster" / "rollout-scaling.yaml"


def metrics_named(text: str) -> set[str]:
    return set(re.findall(r"\brstar2_(?:operator|job)_[a-z_]+", text))


def existing_metrics() -> set[str]:
    """Return the names of all series that the operator's metrics can have."""
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    metrics = Metrics()
    metrics.measure_jobs(dict)
    return {metric.name + suffix for metric in metrics.registry.collect() for suffix in suffixes[metric.type]}


def accepts(promtool: str, folder: Path, *arguments: str) -> None:
    """Check that promtool succeeds on files of `folder`."""
    done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_in_their_cases(rendered: Render, promtool: str, tmp_path: Path) -> None:
    """promtool accepts the rules, and each alert fires in its case of alerts.yaml and not otherwise."""
    rule = rendered(*ON).single("PrometheusRule", OPERATOR)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    (tmp_path / "alerts.yaml").write_text(CASES.read_text())
    accepts(promtool, tmp_path, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    accepts(promtool, tmp_path, "test", "rules", "alerts.yaml")
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


def test_autoscaler_metric_needs_a_recent_step(promtool: str, tmp_path: Path) -> None:
    """The example's query is the busy share of the last step, and has no value long after that step."""
    text = AUTOSCALER.read_text()
    lines = text.partition("values:\n")[2].splitlines()
    values = "\n".join(line[2:] for line in itertools.takewhile(lambda line: line.startswith("# "), lines))
    (rule,) = yaml.safe_load(values)["rules"]["external"]
    (source,) = yaml.safe_load(text)["spec"]["metrics"]
    assert rule["name"]["as"] == source["external"]["metric"]["name"]
    series, matchers = rule["seriesQuery"].partition("{")[0], 'namespace="lab",job="demo"'
    query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers)
    assert metrics_named(query) <= existing_metrics()
    labels = f'{{{matchers},stage="rl-1"}}'
    steps = [{"series": f"rstar2_job_step{labels}", "values": "0x9 1x60"}]
    other = [{"series": series + labels.replace("demo", "other"), "values": "0.5x70"}]
    idle = [{"series": f"{series}{labels}", "values": "_x10 0.25x60"}]
    expected = {"8m": [], "11m": [{"labels": "{}", "value": 0.75}], "38m": [{"labels": "{}", "value": 0.75}], "45m": []}
    cases = [{"expr": query, "eval_time": time, "exp_samples": samples} for time, samples in expected.items()]
    test = {"interval": "1m", "input_series": steps + other + idle, "promql_expr_test": cases}
    (tmp_path / "query.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    accepts(promtool, tmp_path, "test", "rules", "query.yaml")


def test_monitoring_by_default_adds_no_object(rendered: Render) -> None:
    """Monitoring is off by default."""
    assert not {"ServiceMonitor", "PrometheusRule", "ConfigMap"} & set(rendered().kinds())
