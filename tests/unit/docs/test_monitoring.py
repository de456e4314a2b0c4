"""docs/monitoring.md has every metric and alert, and no page has a metric that does not exist."""

from __future__ import annotations

import re

import yaml

from rstar2_operator.metrics import Metrics
from rstar2_train.tracking.metrics import HEADLINE
from scripts.docs.repository import PAGES, ROOT

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


def test_monitoring_page_has_severity_and_time_of_each_alert() -> None:
    """The time is that of `for`; two alerts have theirs in the expression."""
    groups = yaml.safe_load((ROOT / "helm" / "rstar2" / "files" / "rules.yaml").read_text("utf-8"))["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    rows = re.findall(r"^\| `(RStar2\w+)` \| (\w+) \| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    assert {name: severity for name, severity, _ in rows} == {
        name: rule["labels"]["severity"] for name, rule in rules.items()
    }
    times = {name: f"for {rule['for'].removesuffix('m')} minutes" for name, rule in rules.items() if "for" in rule}
    assert {name for name, _, condition in rows if times.get(name, "") not in condition} == set()


def test_monitoring_page_has_the_types_of_operator_metrics() -> None:
    """Gauge, counter or histogram."""
    metrics = Metrics()
    metrics.measure_jobs(lambda: {})
    types = {family.name: family.type for family in metrics.registry.collect()}
    rows = re.findall(r"^\| `(rstar2_(?:operator|job)_\w+)` \| (\w+)", PAGE, flags=re.MULTILINE)
    assert {name.removesuffix("_total"): kind for name, kind in rows} == types


def test_monitoring_page_has_each_training_metric() -> None:
    """Metrics of a GRPO step, as they are written in the source."""
    source = (ROOT / "rstar2_train" / "tracking" / "metrics.py").read_text("utf-8")
    names = set(re.findall(r'"([a-z_]+/[a-z0-9_]+)"', source))
    assert names
    assert {name for name in names if f"`{name}`" not in PAGE} == set()


def test_monitoring_page_has_the_metrics_of_the_status() -> None:
    """Those of a step in `status.stages[].metrics`, by their short names."""
    sentence = next(text for text in PAGE.split("\n\n") if "`status.stages[].metrics`" in text)
    assert re.findall(r"`([a-z_]+)`", sentence) == list(HEADLINE)


def test_pages_name_existing_training_metrics() -> None:
    """Each is a literal of the source, or an f-string such as `f"trainer/{name}"` whose name is a literal."""
    source = "".join(path.read_text("utf-8") for path in sorted((ROOT / "rstar2_train").rglob("*.py")))
    literals = set(re.findall(r'"([a-z_]+/[a-z0-9_]+)"', source))
    texts = re.findall(r'f"([a-z_]+/[^".]*\{\w+\}[^".]*)"', source)
    templates = [re.sub(r"\{\w+\}", r"(\\w+)", text) for text in texts]
    prefixes = {name.partition("/")[0] for name in re.findall(r"`([a-z_]+/[a-z0-9_]+)`", PAGE)}
    pages = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in PAGES if name != "CHANGELOG.md")]
    pattern = rf"`((?:{'|'.join(prefixes)})/[a-z0-9_]+)`"
    named = {name for page in pages for name in re.findall(pattern, page.read_text("utf-8"))} - literals
    assert len(named) > 20
    matches = {name: [match for template in templates if (match := re.fullmatch(template, name))] for name in named}
    assert {name for name in named if not any(f'"{match[1]}"' in source for match in matches[name])} == set()
