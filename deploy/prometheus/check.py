"""Checks every PromQL expression of the dashboard and of the alert rules against the metrics that a gateway shows.

python deploy/prometheus/check.py
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DASHBOARD = ROOT / "deploy" / "grafana" / "sluice.json"
ALERTS = HERE / "alerts.yml"
TARGET = frozenset({"job", "instance"})  # labels that a scrape adds
GIVEN = {"up": TARGET}  # metrics that a scrape adds

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"(?<![\w.])(?P<metric>[a-zA-Z_:][\w:]*)\s*(?:\{(?P<matchers>[^}]*)\})?")
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_DURATION = re.compile(r"\[[^]]*\]")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "inf", "nan"})
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def existing() -> dict[str, frozenset[str]]:
    """Return the labels of each series of a gateway's registry, by its name."""
    from gateway.runtime.metrics import Metrics

    found: dict[str, frozenset[str]] = {}
    for collector in Metrics().registry._collector_to_names:  # noqa: SLF001 - collect() tells no labels without a sample
        for family in collector.collect():
            labels = frozenset(getattr(collector, "_labelnames", getattr(family, "_labelnames", ())))
            of_samples = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
            for suffix in _SUFFIXES[family.type]:
                more = {"le"} if suffix == "_bucket" else set()
                found[family.name + suffix] = labels | of_samples | more
    return found


def problems_of(expression: str, metrics: Mapping[str, frozenset[str]], legend: str = "") -> list[str]:
    """Return what is wrong with one expression and the labels that its legend shows."""
    listed = [name.strip() for names in _LABEL_LIST.findall(expression) for name in names.split(",") if name.strip()]
    rest = _DURATION.sub("", _LABEL_LIST.sub("", expression))
    problems, labels = [], set(TARGET)
    rest = _STRING.sub('""', rest)
    for match in _SELECTOR.finditer(rest):
        name, matchers = match["metric"], match["matchers"]
        is_function = matchers is None and rest[match.end() :].lstrip().startswith("(")
        if name.lower() in _WORDS or is_function:
            continue
        if name not in metrics:
            problems.append(f"there is no metric {name}")
            continue
        labels |= metrics[name]
        for matcher in filter(None, (part.strip() for part in (matchers or "").split(","))):
            label = re.split(r"=~|!~|!=|=", matcher)[0].strip()
            if label not in metrics[name] | TARGET:
                problems.append(f"{name} has no label {label}")
    problems += [f"no metric here has the label {label}" for label in listed if label not in labels]
    if "histogram_quantile" in expression and "le" not in listed:
        problems.append("histogram_quantile needs the label le")
    is_aggregated = bool(_LABEL_LIST.search(expression))
    shown = re.findall(r"\{\{\s*(\w+)\s*\}\}", legend)
    left = set(listed) if is_aggregated else labels
    problems += [f"the legend shows {label}, which the expression doesn't keep" for label in shown if label not in left]
    return problems


def expressions() -> Iterator[tuple[str, str, str]]:
    """Yield where each expression stands, the expression, and its legend."""
    for panel in _panels(json.loads(DASHBOARD.read_text())["panels"]):
        for target in panel.get("targets", ()):
            yield f"dashboard, {panel['title']}", target["expr"], target.get("legendFormat", "")
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            legend = " ".join(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
            yield f"alert {rule['alert']}", rule["expr"], " ".join(f"{{{{{name}}}}}" for name in legend.split())


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    import django

    django.setup()
    metrics = existing() | GIVEN
    found = [
        f"{where}: {problem}"
        for where, expression, legend in expressions()
        for problem in problems_of(expression, metrics, legend)
    ]
    print("\n".join(found) or "every metric and label exists")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
