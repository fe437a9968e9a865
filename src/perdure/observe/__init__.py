"""Observers to give to a runtime: `Runtime(observe=...)`.

OpenTelemetry   one trace per run, across all processes that drive it
LangSmith       each segment of a run as a trace, scores as feedback
Logs            one structured line per event, without content
Metrics         counters, gauges and histograms, for Prometheus and OTLP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perdure.errors import Error, needs_extra

if TYPE_CHECKING:
    from perdure.observe.langsmith import LangSmith
    from perdure.observe.langsmith_ids import langsmith_run_ids
    from perdure.observe.logs import Logs
    from perdure.observe.metrics import Metrics
    from perdure.observe.opentelemetry import OpenTelemetry

__all__ = ["LangSmith", "Logs", "Metrics", "OpenTelemetry", "from_env", "langsmith_run_ids"]

_HOMES = {
    "LangSmith": ("perdure.observe.langsmith", "langsmith"),
    "langsmith_run_ids": ("perdure.observe.langsmith_ids", "langsmith"),
    "Logs": ("perdure.observe.logs", ""),
    "Metrics": ("perdure.observe.metrics", "otel"),
    "OpenTelemetry": ("perdure.observe.opentelemetry", "otel"),
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _HOMES[name]
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise Error(needs_extra(f"perdure.observe.{name}", extra)) from error


def from_env() -> list[Any]:
    """The observers that the environment configures, with the variables of OpenTelemetry and
    LangSmith. None of them: nothing is imported, and nothing is sent."""
    found: list[Any] = []
    wants_traces = os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none"
    if wants_traces and _is_on("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        found.append(__getattr__("OpenTelemetry")())
    wants_metrics = os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none"
    if wants_metrics and _is_on(
        "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
    ):
        found.append(__getattr__("Metrics")(otlp=True))
    if _langsmith("TRACING_V2", "TRACING") == "true" and _langsmith("API_KEY"):
        found.append(__getattr__("LangSmith")())
    return found


def _langsmith(*names: str) -> str | None:
    """The first of these variables of LangSmith, which has two prefixes."""
    every = (f"{prefix}_{name}" for name in names for prefix in ("LANGSMITH", "LANGCHAIN"))
    return next((value for one in every if (value := os.environ.get(one))), None)


def _is_on(*names: str) -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(os.environ.get(name) for name in names)
