"""Places: which columns of its row each blob is bound to.

A blob opens only while its row has the same values in these columns, so a row that was moved to
another thread, run or task, or whose deciding columns were changed, is `Damaged`. Columns that SQL
computes are not among them; `docs/guides/safe-loading.md` says what that leaves open. The blobs of
checkpoints have their places in `checkpoint/row_format.py`, those of effects in `EffectRow`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

bound_text: Callable[[list[Any]], str] = json.JSONEncoder(default=repr).encode
"""The text of `["place", name, *columns]` that an envelope authenticates. It must never change for
a stored row."""


class Place(NamedTuple):
    """Where a blob belongs."""

    name: str
    """Its name in messages, and all that blobs of older versions are bound to."""
    columns: tuple[Any, ...]


def of_setup(
    thread_id: str, run_id: str, graph: str, version: str, key: str | None, created_at: int
) -> Place:
    return Place(f"setup of run {run_id}", (thread_id, graph, version, key, created_at))


def of_run(column: str, thread_id: str, run_id: str) -> Place:
    """The labels, output or error of a run."""
    return Place(f"{column} of run {run_id}", (thread_id,))


def of_wait(
    thread_id: str,
    wait_id: str,
    run_id: str,
    kind: str,
    name: str | None,
    interrupt_id: str,
    wake_at: int | None,
    expires_at: int | None,
    created_at: int,
) -> Place:
    """What a wait shows. Its asker may move; see `of_asker`."""
    columns = (thread_id, run_id, kind, name, interrupt_id, wake_at, expires_at, created_at)
    return Place(f"body of wait {wait_id}", columns)


def of_asker(
    thread_id: str,
    wait_id: str,
    ns: str,
    checkpoint_id: str,
    task_id: str,
    path: str,
    stamp: int,
) -> Place:
    """The task that an answer to a wait is handed to."""
    return Place(f"asker of wait {wait_id}", (thread_id, ns, checkpoint_id, task_id, path, stamp))


def of_answer(
    thread_id: str, wait_id: str, run_id: str, answered_by: str | None, answered_at: int | None
) -> Place:
    return Place(f"answer of wait {wait_id}", (thread_id, run_id, answered_by, answered_at))


def of_signal(thread_id: str, signal_id: str, name: str, key: str | None, sent_at: int) -> Place:
    return Place(f"signal {signal_id}", (thread_id, name, key, sent_at))


def of_event(change: int, at: int) -> Place:
    """SQL decides which runs have the event, and its kind: what may be is in the blob."""
    return Place(f"event {change}", (at,))


def of_read(thread_id: str, run_id: str, task: str, n: int) -> Place:
    return Place(f"read {n} of task {task!r} of run {run_id}", (thread_id,))


def of_schedule(name: str, graph: str, cron: str, timezone: str, catch_up: int | None) -> Place:
    return Place(f"schedule {name!r}", (graph, cron, timezone, catch_up))


def of_message(thread_id: str, id: str, run_id: str, topic: str, sent_at: int) -> Place:
    return Place(f"message {id}", (thread_id, run_id, topic, sent_at))


def of_stream(
    thread_id: str, run_id: str, n: int, last: int, token: int, at: int, replaces: int | None
) -> Place:
    return Place(f"chunks {n} to {last} of run {run_id}", (thread_id, token, at, replaces))


def of_trace(thread_id: str, run_id: str, sink: str, n: int) -> Place:
    return Place(f"trace of run {run_id} for {sink}", (thread_id, n))


def of_score(
    thread_id: str,
    run_id: str,
    name: str,
    about: str,
    value: float,
    at: int,
    kind: str = "number",
    label: str | None = None,
    target: str = "",
    target_id: str = "",
) -> Place:
    """That of a number about a run or a named part of it is as it was before there were others."""
    columns: tuple[Any, ...] = (thread_id, value, at)
    if (kind, label, target, target_id) != ("number", None, "", ""):
        columns += (kind, label, target, target_id)
    return Place(f"score {name!r} of {about!r} of run {run_id}", columns)


def of_assistant_version(
    assistant_id: str, version: int, graph: str, name: str, created_at: int
) -> Place:
    columns = (graph, name, created_at)
    return Place(f"version {version} of assistant {assistant_id}", columns)


def of_thread(thread_id: str, created_at: int) -> Place:
    """What callers say about a thread. SQL decides its graph and its assistant."""
    return Place(f"record of thread {thread_id}", (created_at,))


def of_server_secret() -> Place:
    return Place("the secret of this journal's servers", ())
