"""Signals: named messages to a thread, kept until a run waits for one. Pure, no I/O.

Which of two callers wins is decided by the statement named in `waits.py`.
"""

from __future__ import annotations

from typing import Any

from perdure.errors import BadArgument
from perdure.journal import Op, Statement, with_params
from perdure.journal.names import check_text
from perdure.serde import places
from perdure.serde.serializer import Serializer


def check_signal_name(name: str) -> None:
    if not name or not isinstance(name, str):
        raise BadArgument(f"The name of a signal is a text that is not empty, not {name!r}.")
    check_text("name", name)


def signal(
    serializer: Serializer,
    thread_id: str,
    signal_id: str,
    name: str,
    key: str | None,
    value: Any,
    now: int,
) -> Op[bool]:
    """Store a signal and wake the run that waits for it. False if its key was sent before."""
    params: dict[str, Any] = {
        "thread_id": thread_id,
        "signal_id": signal_id,
        "name": name,
        "key": key,
        "now": now,
    }
    place = places.of_signal(thread_id, signal_id, name, key, now)
    params["body"] = serializer.dumps(value, place, f"signal {name!r}")
    return Op(
        f"signal {name!r} to thread {thread_id!r}",
        # lock_runs: a driver that ends its segment at this moment has not seen the signal.
        with_params(params, "insert_signal", "lock_runs", "wake_thread", "find_signal"),
        lambda rows: bool(rows[-1]),
        write=True,
        key=Statement("find_signal", params),
    )
