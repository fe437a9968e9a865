"""What LangSmith's client hides, samples and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langsmith import Client

Content = Mapping[str, Any]


def is_sampled(client: Client, trace_id: Any) -> bool:
    """A client with a sampling rate sends a share of the traces, chosen by their ids."""
    return client._should_sample(trace_id)


def hidden(
    client: Client, inputs: Content, outputs: Content, metadata: Content
) -> tuple[Content, Content, Content]:
    """What the client would send of a run: it hides inputs, outputs or metadata, or anonymizes
    them. Raises what its anonymizer raises."""
    return (
        client._hide_run_inputs(dict(inputs)),
        client._hide_run_outputs(dict(outputs)),
        client._hide_run_metadata(dict(metadata)),
    )


def can_queue(client: Client) -> bool:
    """Whether the client sends in the background."""
    return client.tracing_queue is not None
