"""What is used of LangSmith's client."""

from __future__ import annotations

import json
from typing import Any

from langsmith import Client

from perdure.langgraph_port import langsmith_client

URL = "http://127.0.0.1:9"


def made(**options: Any) -> Client:
    return Client(URL, api_key="key", auto_batch_tracing=False, info={}, **options)


def test_content_is_hidden_or_anonymized_as_the_client_does_it() -> None:
    inputs, outputs, metadata = {"a": "secret"}, {"b": "secret"}, {"c": "secret"}
    hiding = made(hide_inputs=True, hide_outputs=True, hide_metadata=True)
    assert langsmith_client.hidden(hiding, inputs, outputs, metadata) == ({}, {}, {})
    masked = made(anonymizer=lambda value: json.loads(json.dumps(value).replace("secret", "***")))
    found = langsmith_client.hidden(masked, inputs, outputs, metadata)
    assert found == ({"a": "***"}, {"b": "***"}, {"c": "***"})
    assert langsmith_client.hidden(made(), inputs, outputs, metadata) == (inputs, outputs, metadata)


def test_a_client_knows_what_it_samples_and_whether_it_queues() -> None:
    client = made(tracing_sampling_rate=0.0)
    assert not langsmith_client.is_sampled(client, "01890000-0000-7000-8000-000000000000")
    assert langsmith_client.is_sampled(made(), "any")
    assert not langsmith_client.can_queue(client)
