"""What is used of LangSmith's client."""

from __future__ import annotations

import json
from typing import Any

from langsmith import Client

from perdure.langgraph_port import langsmith_client

URL = "http://127.0.0.1:9"


def made(**options: Any) -> Client:
    return Client(URL, api_key="key", auto_batch_tracing=False, info={}, **options)


def test_a_run_is_prepared_as_the_client_does_it() -> None:
    run = {
        "id": "01890000-0000-7000-8000-000000000000",
        "name": "g",
        "run_type": "chain",
        "inputs": {"a": "secret"},
        "outputs": {"b": "secret"},
        "extra": {"metadata": {"c": "secret"}},
        "error": "secret",
    }
    hidden = made(hide_inputs=True, hide_outputs=True, hide_metadata=True)
    prepared = langsmith_client.prepare(hidden, {**run, "error": None})
    assert (prepared["inputs"], prepared["outputs"]) == ({}, {})
    assert "runtime" in prepared["extra"]
    assert b"secret" not in langsmith_client.serialize(prepared)
    masked = made(anonymizer=lambda value: json.loads(json.dumps(value).replace("secret", "***")))
    prepared = langsmith_client.prepare(masked, run)
    assert b"secret" not in langsmith_client.serialize(prepared)
    assert prepared["inputs"] == {"a": "***"}
    assert run["inputs"] == {"a": "secret"}


def test_a_text_is_anonymized_as_an_output_is() -> None:
    masked = made(hide_outputs=lambda outputs: {"text": "***"})
    assert langsmith_client.anonymize(masked, "secret") == "***"
    assert langsmith_client.anonymize(made(), "open") == "open"
    assert langsmith_client.hides_outputs(made(hide_outputs=True))
    assert not langsmith_client.hides_outputs(masked)


def test_a_client_knows_what_it_samples_and_where_it_sends() -> None:
    client = made(tracing_sampling_rate=0.0)
    assert not langsmith_client.is_sampled(client, "01890000-0000-7000-8000-000000000000")
    assert langsmith_client.is_sampled(made(), "any")
    assert langsmith_client.write_urls(client) == {URL: "key"}
    assert not langsmith_client.can_queue(client)
