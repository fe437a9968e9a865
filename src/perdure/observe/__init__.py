"""Observers to give to a runtime: `Runtime(observe=...)`.

OpenTelemetry   one trace per run, across all processes that drive it
LangSmith       each segment of a run as a trace, scores as feedback
Logs            one structured line per event, without content
Metrics         counters, gauges and histograms, for Prometheus and OTLP
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from perdure.errors import BadArgument, Error, needs_extra

if TYPE_CHECKING:
    from perdure.observe.langsmith import LangSmith, langsmith_run_ids
    from perdure.observe.logs import Logs
    from perdure.observe.metrics import Metrics
    from perdure.observe.opentelemetry import OpenTelemetry
    from perdure.observe.trace_fold import trace_id as trace_id

__all__ = ["LangSmith", "Logs", "Metrics", "OpenTelemetry", "from_env", "langsmith_run_ids"]

log = logging.getLogger("perdure")

_HOMES = {
    "LangSmith": ("perdure.observe.langsmith", "langsmith"),
    "langsmith_run_ids": ("perdure.observe.langsmith", "langsmith"),
    "Logs": ("perdure.observe.logs", ""),
    "Metrics": ("perdure.observe.metrics", "otel"),
    "OpenTelemetry": ("perdure.observe.opentelemetry", "otel"),
    "trace_id": ("perdure.observe.trace_fold", ""),
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
    """The observers that the variables of OpenTelemetry and LangSmith configure.

    `Runtime(observe=True)`, `perdure worker`, `tick`, `serve` and `dev` use them. If no variable is
    set, nothing is imported and nothing is sent. If the packages of an extra are missing, a warning
    is logged and its observer left out: a platform may set the variables for all its programs.

    Returns:
        `OpenTelemetry()` if an OTLP endpoint for traces is set, `Metrics(otlp=True)` if one for
        metrics is, `LangSmith()` if `LANGSMITH_TRACING` and `LANGSMITH_API_KEY` are.

    Raises:
        BadArgument: A variable has a value that cannot work.
    """
    found: list[Any] = []
    protocols: set[str] = set()
    observers: dict[str, tuple[str, dict[str, Any]]] = {
        "TRACES": ("OpenTelemetry", {}),
        "METRICS": ("Metrics", {"otlp": True}),
    }
    for signal, (name, options) in observers.items():
        if variable := _otlp_endpoint(signal):
            protocols.add(_otlp(signal, "PROTOCOL"))
            found += _wanted(name, variable, **options)
    for variable in sorted(protocols):
        if os.environ.get(variable) == "grpc":
            log.warning(
                "%s is grpc, and perdure exports over HTTP only: the endpoint must be that of OTLP "
                "over HTTP, usually port 4318.",
                variable,
            )
    if _langsmith("TRACING_V2", "TRACING") == "true":
        if _langsmith("API_KEY"):
            found += _wanted("LangSmith", "LANGSMITH_TRACING")
        else:
            log.warning(
                "LANGSMITH_TRACING is set and LANGSMITH_API_KEY is not: perdure sends nothing to "
                "LangSmith."
            )
    return found


def _wanted(name: str, variable: str, **options: Any) -> list[Any]:
    """The observer that this variable asks for, if its extra is installed."""
    try:
        kind = __getattr__(name)
    except Error as error:
        log.warning("%s is set, and nothing is sent: %s", variable, error)
        return []
    return [kind(**options)]


def _otlp_endpoint(signal: str) -> str:
    """The variable that says where to export a signal; empty if it is not to be exported."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return ""
    found = _otlp(signal, "ENDPOINT")
    if found and not os.environ[found].lower().startswith(("http://", "https://")):
        raise BadArgument(
            f"{found} does not begin with http:// or https://. It is the address of OTLP over "
            "HTTP, such as http://localhost:4318."
        )
    return found


def _otlp(signal: str, setting: str) -> str:
    """The variable that has a setting of a signal, or of all of them; empty if none has."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_{setting}", f"OTEL_EXPORTER_OTLP_{setting}")
    return next((name for name in names if os.environ.get(name)), "")


def _langsmith(*names: str) -> str | None:
    """The first of these variables of LangSmith, which has two prefixes."""
    every = (f"{prefix}_{name}" for name in names for prefix in ("LANGSMITH", "LANGCHAIN"))
    return next((value for one in every if (value := os.environ.get(one))), None)
