"""Examples from values, from a file of JSON Lines, or from a dataset of LangSmith."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from perdure.errors import BadArgument, NotFound
from perdure.types import Example

LANGSMITH = "langsmith:"  # prefix of the name of a LangSmith dataset
_FIELDS = frozenset(field.name for field in fields(Example))


def read_examples(source: str | os.PathLike[str] | Iterable[Any]) -> list[Example]:
    """Return examples from a file of JSON Lines, a LangSmith dataset, or other values.

    A line, like a dict, has the fields of `Example`, or LangSmith's `inputs` and `outputs`.

    Args:
        source: The path of a file, `langsmith:NAME`, which needs `LANGSMITH_API_KEY`, or examples.

    Raises:
        BadArgument: An example is not valid; the message says which.
        NotFound: LangSmith has no such dataset.
    """
    if isinstance(source, str) and source.startswith(LANGSMITH):
        return _from_langsmith(source.removeprefix(LANGSMITH))
    if not isinstance(source, (str, os.PathLike)):
        return [_to_example(n, one) for n, one in enumerate(source, 1)]
    try:
        lines = Path(source).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"{source}: {getattr(error, 'strerror', None) or error}.") from error
    return [_to_example(n, _parsed(n, line)) for n, line in enumerate(lines, 1) if line.strip()]


def _parsed(n: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"Line {n} is not JSON: {error}.") from error


def _to_example(n: int, given: Any) -> Example:
    if isinstance(given, Example):
        return given
    if not isinstance(given, Mapping) or not ({"input", "inputs"} & given.keys()):
        raise BadArgument(f"Example {n} needs `input`, or LangSmith's `inputs`: {str(given)[:60]}.")
    if "inputs" in given:
        given = {
            "id": str(given.get("id") or ""),
            "input": given["inputs"],
            "expected": given.get("outputs"),
            "metadata": given.get("metadata"),
        }
    if unknown := given.keys() - _FIELDS:
        names = ", ".join(sorted(unknown))
        raise BadArgument(f"Example {n} has fields that an example does not have: {names}.")
    rest = {name: value for name, value in given.items() if value is not None}
    return Example(**{"input": None, **rest})


def _from_langsmith(name: str) -> list[Example]:
    if not os.environ.get("LANGSMITH_API_KEY"):
        raise BadArgument("LangSmith is not configured: set LANGSMITH_API_KEY.")
    from langsmith import Client

    client = Client()
    if not client.has_dataset(dataset_name=name):
        raise NotFound("dataset", name, "LangSmith")
    return [
        Example(dict(one.inputs or {}), one.outputs, str(one.id), one.metadata or {})
        for one in client.list_examples(dataset_name=name)
    ]
