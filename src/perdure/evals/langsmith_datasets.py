"""Datasets of LangSmith itself, through its client, if it is installed and configured."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from perdure.errors import BadArgument, NotFound
from perdure.evals.formats import from_langsmith, to_langsmith
from perdure.types import Example

BATCH = 100
"""Examples per request."""


def pull(name: str, client: Any = None) -> list[Example]:
    """The examples of a LangSmith dataset. Raises `NotFound`."""
    client = client or _client()
    if not client.has_dataset(dataset_name=name):
        raise NotFound("dataset", name, "LangSmith")
    found = client.list_examples(dataset_name=name)
    return [
        from_langsmith(
            {
                "id": str(one.id),
                "inputs": one.inputs,
                "outputs": one.outputs,
                "metadata": one.metadata,
            }
        )
        for one in found
    ]


def push(examples: Iterable[Example], name: str, client: Any = None) -> int:
    """Create or update a LangSmith dataset, and return the number of examples. An example always
    has the same id in LangSmith, so a repeated call changes nothing. Examples removed here stay
    there.
    """
    client = client or _client()
    if client.has_dataset(dataset_name=name):
        dataset = client.read_dataset(dataset_name=name)
    else:
        dataset = client.create_dataset(name, description="From perdure.")
    there = {str(one.id) for one in client.list_examples(dataset_id=dataset.id)}
    lines = [_line(one, dataset.id, there) for one in examples]
    for batch in _batches([line for line in lines if line["id"] in there]):
        client.update_examples(dataset_id=dataset.id, updates=batch)
    for batch in _batches([line for line in lines if line["id"] not in there]):
        new = [{**line, "reference_outputs": line.get("outputs")} for line in batch]
        for line in new:
            line.pop("outputs", None)
        client.create_examples(dataset_id=dataset.id, examples=new)
    return len(lines)


def _line(example: Example, dataset: uuid.UUID, there: set[str]) -> dict[str, Any]:
    """The example with its id in the dataset: its own if it came from there."""
    id = example.id if example.id in there else str(uuid.uuid5(dataset, example.id))
    return {**to_langsmith(example), "id": id}


def _batches(lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for at in range(0, len(lines), BATCH):
        yield lines[at : at + BATCH]


def _client() -> Any:
    if not os.environ.get("LANGSMITH_API_KEY"):
        raise BadArgument("LangSmith is not configured: set LANGSMITH_API_KEY.")
    try:
        from langsmith import Client
    except ImportError as error:
        raise BadArgument(
            "LangSmith's client is not installed: install perdure[langsmith]."
        ) from error
    return Client()
