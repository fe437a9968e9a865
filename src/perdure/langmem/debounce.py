"""Debouncing: a later reflection of a conversation replaces an earlier one that has not begun.

The reflections of one conversation in one namespace share a thread, and a run is started there with
the strategy `replace`: one batch cancels the run that has not begun and inserts the new one. A
running reflection is not touched; the new one follows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from perdure.journal import Plan
from perdure.service.reflections import PREFIX, graph_name
from perdure.service.runs import RunService, make_setup


def debounce_thread(
    executor: str, namespace: Sequence[str], conversation: str | None, key: str
) -> str:
    """The thread that a reflection shares with those it replaces, or is replaced by. Without a
    conversation `key` makes it unique."""
    parts = [key] if conversation is None else [*namespace, "", conversation]
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=16)
    return f"{PREFIX}{executor}:{digest.hexdigest()}"


def accept(
    runs: RunService,
    executor: str,
    thread_id: str,
    input: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
    key: str,
    after: timedelta,
) -> Plan[str]:
    """Accept a reflection and return its id. The same `key` returns the one it made before."""
    setup = make_setup(input=input, metadata=metadata, tags=(), context=None, config=None)
    row = yield from runs.accept(
        (graph_name(executor), ""), thread_id, setup, "replace", key=key, after=after
    )
    return row.id
