"""Counters, gauges and histograms in plain Python: what `Metrics` adds to, and what exporters read.

Each family has one writer at a time, so nothing is locked: a reader may be one value behind. The
number of label values is bounded; what comes after that is counted under `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

MOST_SERIES = 500
"""Combinations of label values in one family, before the rest is `other`."""
OTHER = "other"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LONG_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

Labels = tuple[str, ...]


class Description(NamedTuple):
    """What a metric is: its name, its help, its labels, its unit."""

    name: str
    help: str
    labels: Labels = ()
    unit: str = "1"
    """As OpenTelemetry writes it: `s`, `By`, `1`."""


class Distribution:
    """How often values fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counter:
    """A family of numbers that only grow."""

    kind = "counter"

    def __init__(self, description: Description) -> None:
        self.description = description
        self.series: dict[Labels, float] = {} if description.labels else {(): 0}

    def add(self, labels: Labels = (), by: float = 1) -> None:
        if labels not in self.series:
            labels = _bounded(labels, len(self.series))
        self.series[labels] = self.series.get(labels, 0) + by


class Gauge:
    """A family of numbers that are replaced."""

    kind = "gauge"

    def __init__(self, description: Description) -> None:
        self.description = description
        self.series: dict[Labels, float] = {}

    def replace(self, series: dict[Labels, float]) -> None:
        """Set all of them: a series that is not among these is gone."""
        bounded: dict[Labels, float] = {}
        for labels, value in series.items():
            labels = _bounded(labels, len(bounded))
            bounded[labels] = bounded.get(labels, 0) + value
        self.series = bounded


class Histogram:
    """A family of distributions."""

    kind = "histogram"

    def __init__(self, description: Description, bounds: Sequence[float] = SECONDS) -> None:
        self.description, self.bounds = description, bounds
        self.series: dict[Labels, Distribution] = {}
        if not description.labels:
            self.series[()] = Distribution(bounds)

    def observe(self, labels: Labels, value: float) -> None:
        found = self.series.get(labels)
        if found is None:
            labels = _bounded(labels, len(self.series))
            found = self.series.setdefault(labels, Distribution(self.bounds))
        found.observe(value)


Family = Counter | Gauge | Histogram


def _bounded(labels: Labels, series: int) -> Labels:
    return labels if series < MOST_SERIES else (OTHER,) * len(labels)
