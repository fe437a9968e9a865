"""Observers that the environment asks for: what is wrong with it is said at once."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest
from langsmith.utils import get_env_var

import perdure
from perdure.errors import BadArgument, Error
from perdure.observe import from_env

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "LANGSMITH_", "LANGCHAIN_")):
            monkeypatch.delenv(name)
    get_env_var.cache_clear()  # type: ignore[attr-defined]
    yield
    get_env_var.cache_clear()  # type: ignore[attr-defined]


def kinds() -> list[str]:
    return [type(one).__name__ for one in from_env()]


def test_one_endpoint_is_for_traces_and_metrics_unless_a_signal_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert kinds() == []
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    assert kinds() == ["OpenTelemetry", "Metrics"]
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert kinds() == ["Metrics"]
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert kinds() == []


def test_an_endpoint_without_a_scheme_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENDPOINT, "localhost:4318")
    with pytest.raises(BadArgument, match=f"{ENDPOINT} does not begin with http://"):
        from_env()


def test_grpc_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with caplog.at_level(logging.WARNING, "perdure"):
        from_env()
    [told] = caplog.messages
    assert told.startswith("OTEL_EXPORTER_OTLP_PROTOCOL is grpc")


def test_a_missing_extra_is_told_with_the_variable_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.delitem(sys.modules, "perdure.observe.opentelemetry", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert kinds() == []
    [told] = caplog.messages
    assert told.startswith(f"{ENDPOINT} is set, and nothing is sent: perdure.observe.OpenTelemetry")


@pytest.mark.parametrize(
    ("package", "module", "name"),
    [
        ("prometheus_client", "metrics", "Metrics"),
        ("opentelemetry", "opentelemetry", "OpenTelemetry"),
    ],
)
def test_an_observer_whose_extra_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, module: str, name: str
) -> None:
    monkeypatch.delitem(sys.modules, f"perdure.observe.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Error, match=f"perdure.observe.{name} needs"):
        getattr(perdure.observe, name)


def test_langsmith_without_a_key_or_with_a_wrong_rate_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    with caplog.at_level(logging.WARNING, "perdure"):
        assert kinds() == []
    assert "LANGSMITH_API_KEY is not" in caplog.text
    monkeypatch.setenv("LANGSMITH_API_KEY", "none")
    for rate in ("7", "often"):
        monkeypatch.setenv("LANGSMITH_TRACING_SAMPLING_RATE", rate)
        get_env_var.cache_clear()  # type: ignore[attr-defined]
        with pytest.raises(BadArgument, match="LangSmith cannot be used as it is configured"):
            from_env()
