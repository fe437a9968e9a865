"""How LangSmith's client prepares runs: what it hides, leaves out and adds.

The client sends runs in the background, and if that fails only logs it. To know that a run arrived,
send it with `Client.request_with_retries`, prepared the way the client does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langsmith import Client


def is_sampled(client: Client, trace_id: Any) -> bool:
    """A client with a sampling rate sends a share of the traces, chosen by their ids."""
    return client._should_sample(trace_id)


def prepare(client: Client, run: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs, outputs, errors and metadata pass the client's anonymizer and what hides them; the
    metadata of the environment is added."""
    prepared = client._run_transform(dict(run))
    client._insert_runtime_env([prepared])
    return prepared


def serialize(value: Any) -> bytes:
    """JSON, with a text for what JSON does not have."""
    from langsmith._internal._serde import dumps_json

    return dumps_json(value)


def hides_outputs(client: Client) -> bool:
    """Whether a client is configured to send no outputs."""
    return client._hide_outputs is True


def anonymize(client: Client, text: str) -> str:
    """A text as the client would send it in an output."""
    hidden = client._hide_run_outputs({"text": text})
    return str(hidden.get("text", ""))


def write_urls(client: Client) -> Mapping[str, str | None]:
    """A client sends runs to each of these addresses, with this key."""
    return client._write_api_urls


def can_queue(client: Client) -> bool:
    """Whether the client sends in the background."""
    return client.tracing_queue is not None
