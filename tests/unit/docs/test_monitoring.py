"""docs/monitoring.md has every metric and alert."""

from __future__ import annotations

import re

import yaml

from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "monitoring.md").read_text("utf-8")


def test_monitoring_page_has_each_prometheus_metric() -> None:
    """Metrics of the operator and of the judge."""
    sources = ("operator/rstar2_operator/metrics.py", "rstar2_train/judge/api/admission.py")
    names = {name for path in sources for name in re.findall(r'"(rstar2_\w+)"', (ROOT / path).read_text("utf-8"))}
    assert names
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_monitoring_page_has_each_alert() -> None:
    """Alerts of the chart's PrometheusRule, and no others."""
    groups = yaml.safe_load((ROOT / "helm" / "rstar2" / "files" / "rules.yaml").read_text("utf-8"))["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == set(re.findall(r"`(RStar2\w+)`", PAGE))


def test_monitoring_page_has_each_training_metric() -> None:
    """Metrics of a GRPO step, as they are written in the source."""
    source = (ROOT / "rstar2_train" / "tracking" / "metrics.py").read_text("utf-8")
    names = set(re.findall(r'"([a-z_]+/[a-z0-9_]+)"', source))
    assert names
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
