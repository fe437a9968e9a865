"""The dashboard asks only for metrics and labels that exist, and shows every one of them. The page
explains them all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.observe.metrics import COUNTERS, GAUGES, HISTOGRAMS

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that the server adds, and that of a histogram's buckets."""


def metrics() -> dict[str, set[str]]:
    """The labels of every metric, by each name that a scrape has."""
    found = {one.name: set(one.labels) for one in (*GAUGES, *COUNTERS)}
    for name, _, labels, _ in HISTOGRAMS:
        found |= {f"{name}{end}": set(labels) for end in ("_bucket", "_sum", "_count")}
    return found


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> Iterator[str]:
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


@pytest.mark.parametrize("expression", sorted({*expressions()}))
def test_an_expression_has_only_metrics_and_labels_that_exist(expression: str) -> None:
    known = metrics()
    names = set(re.findall(r"\bperdure_\w+", expression))
    assert names
    assert names <= known.keys()
    labels = set().union(*(known[name] for name in names)) | OF_PROMETHEUS
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [word for by in re.findall(r"by \(([^)]*)\)", expression) for word in by.split(", ")]
    asked = re.findall(r"label_values\(\w+, (\w+)\)", expression)
    assert {*matched, *grouped, *asked} <= labels
    assert expression.count("(") == expression.count(")")


def test_every_metric_is_on_the_dashboard() -> None:
    text = " ".join(expressions())
    shown = {name.removesuffix("_bucket") for name in re.findall(r"\bperdure_\w+", text)}
    every = {name for name in metrics() if not name.endswith(("_sum", "_count"))}
    assert {name.removesuffix("_bucket") for name in every} <= shown


def test_the_page_explains_every_metric_with_its_labels() -> None:
    page = (ROOT / "docs" / "guides" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(perdure_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    explained = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    parts = ("_bucket", "_sum", "_count")
    every = {name.removesuffix("_bucket"): labels for name, labels in metrics().items()}
    assert explained == {name: every[name] for name in every if not name.endswith(parts)}
