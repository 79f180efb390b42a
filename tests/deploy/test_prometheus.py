"""The dashboard and the alert rules use what a gateway shows, and all of it; docs/monitoring.md names each."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
import yaml

from gateway.runtime.metrics import Metrics
from gateway.runtime.observed import LATE
from gateway.runtime.readiness import DECISIVE
from operation.checks.checks import CHECKS
from operation.jobs.tasks import JOBS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def loaded():
    spec = importlib.util.spec_from_file_location("deploy_prometheus_check", FOLDER / "check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = loaded()
METRICS = check.existing() | check.GIVEN
EXPRESSIONS = list(check.expressions())


@pytest.mark.parametrize(("where", "expression", "legend"), EXPRESSIONS, ids=[each[0] for each in EXPRESSIONS])
def test_an_expression_uses_what_there_is(where, expression, legend):
    assert check.problems_of(expression, METRICS, legend) == []


@pytest.mark.parametrize(
    ("expression", "legend", "problem"),
    [
        ("sum(rate(sluice_request_total[5m]))", "", "there is no metric sluice_request_total"),
        ("sum(rate(sluice_requests[5m]))", "", "there is no metric sluice_requests"),
        ('sluice_requests_total{state="200"}', "", "sluice_requests_total has no label state"),
        ("sum by (tenant) (sluice_open_holds)", "", "no metric here has the label tenant"),
        ("sum by (model) (rate(sluice_tokens_total[5m]))", "{{usage_class}}", "the legend shows usage_class"),
        ("histogram_quantile(0.9, sum(rate(sluice_ttft_seconds_bucket[5m])))", "", "needs the label le"),
        ('max(sluice_open_holds{job="x",node="y"}) / up', "", "sluice_open_holds has no label node"),
    ],
)
def test_a_mistake_is_found(expression, legend, problem):
    [found] = check.problems_of(expression, METRICS, legend)
    assert problem in found


def test_what_prometheus_understands_is_not_taken_for_a_metric():
    expression = 'time() - max by (task) (sluice_task_duration_seconds{task=~"a|b"}) > 1e6 and on (job) up offset 5m'
    assert check.problems_of(expression, METRICS, "{{task}}") == []


def families():
    """Every metric of ours, without what its samples add to its name."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRICS if name.startswith("sluice_")}


def test_no_metric_is_left_out_of_the_dashboard():
    shown = " ".join(expression for where, expression, _ in EXPRESSIONS if where.startswith("dashboard"))
    assert [name for name in sorted(families()) if name not in shown] == []


def test_every_metric_is_described():
    assert [name for name in sorted(families()) if f"`{name}`" not in PAGE] == []


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["annotations"]["runbook"].endswith(f"(docs/monitoring.md, {rule['alert']}).")
        severity = "by check" if "sluice_check" in rule["expr"] else rule["labels"]["severity"]
        assert f"| `{rule['alert']}` | {severity} |" in PAGE


COUNTED = [  # what stands in an increase or a rate of an alert, but for histograms
    (rule["alert"], name, matchers)
    for rule in RULES
    for name, matchers in re.findall(r"(?:increase|rate)\((\w+_total)(?:\{([^}]*)\})?\[", rule["expr"])
]


@pytest.mark.parametrize(("alert", "name", "matchers"), COUNTED, ids=[" ".join(each) for each in COUNTED])
def test_no_alert_misses_what_is_counted_first(alert, name, matchers):
    """An increase is told from a series' first sample on: one that begins with its first count has none."""
    metrics = Metrics()
    metrics.answered("/v1/models", 200)
    wanted = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples if sample.name == name]
    fitting = [one for one in samples if all(re.fullmatch(value, one.labels[label]) for label, value in wanted)]
    assert fitting


def test_the_dashboards_panels_have_ids_and_places_of_their_own():
    panels = json.loads(check.DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for place in (panel["gridPos"] for panel in panels):
        across, down = (range(place[at], place[at] + place[size]) for at, size in (("x", "w"), ("y", "h")))
        cells = set(product(across, down))
        assert across[-1] < 24
        assert not cells & taken
        taken |= cells


def test_no_task_that_is_done_on_time_is_late_or_waits_long_for_its_first_turn():
    """Beat forgets when it ends, and begins with the wait: what is due seldom is never done, and always late."""
    late = 2 * LATE.total_seconds()
    assert [job.name for job in JOBS if 2 * job.every_s > late] == []


def test_the_alert_on_checks_has_the_severity_that_each_check_declares():
    declared = {str(check.severity) for check in (*CHECKS, *DECISIVE)}
    assert declared == {"critical", "warning"}
    [rule] = [rule for rule in RULES if rule["labels"]["severity"] not in declared]
    assert rule["expr"] == "min by (name, severity) (sluice_check) == 0"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool isn't installed")
def test_prometheus_takes_rules_and_configuration():
    for what, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            ["promtool", "check", what, file], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
