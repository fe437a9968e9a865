"""Signals: named messages to a thread, kept until a run waits for one. Pure, no I/O.

Which of two callers wins is decided by the statement named in `waits.py`.
"""

from __future__ import annotations

from typing import Any

from perdure.commands import waits
from perdure.commands.connection import Connection
from perdure.errors import BadArgument
from perdure.journal import Op, Plan, Statement, with_params
from perdure.journal.names import check_text, new_id
from perdure.serde.serializer import Serializer
from perdure.verbs import call_key, check_name, verb


def check_signal_name(name: str) -> None:
    if not name or not isinstance(name, str):
        raise BadArgument(f"The name of a signal must be a string that is not empty, not {name!r}.")
    check_text("name", name)


def store_signal(
    serializer: Serializer,
    thread_id: str,
    signal_id: str,
    name: str,
    key: str | None,
    value: Any,
    now: int,
) -> Op[bool]:
    """Store a signal and wake the run that waits for it. False if its key was sent before."""
    params: dict[str, Any] = {"thread_id": thread_id, "signal_id": signal_id, "name": name}
    params |= {"key": key, "now": now}
    place = waits.signal_place(thread_id, signal_id, name, key, now)
    params["body"] = serializer.dumps(value, place, f"signal {name!r}")
    return Op(
        f"signal {name!r} to thread {thread_id!r}",
        # lock_runs: a driver that ends its segment at this moment has not seen the signal.
        with_params(params, "insert_signal", "lock_runs", "wake_thread", "find_signal"),
        lambda rows: bool(rows[-1]),
        write=True,
        key=Statement("find_signal", params),
    )


@verb(effect=True)
def signal(
    on: Connection, thread_id: str, name: str, value: Any = None, *, key: str | None = None
) -> Plan[bool]:
    """Send a named message to a thread. It is on disk when this returns, and delivered once.

    One wait of that name on the thread gets it, the oldest signal first. If no run waits for it
    yet, it is kept for this run or a later one; the thread need not have a run.

        await client.signal("order-1", "paid", {"amount": 12}, key="webhook-981")

    `perdure.wait_for` receives it; it also withdraws a question of `perdure.ask(…,
    unless=name)`. In a node this is an effect: the signal is sent once.

    Args:
        thread_id: The thread.
        name: The name of the signal, up to 256 bytes.
        value: The value that `wait_for` returns.
        key: Idempotency key. A second signal with the same thread, name and key is not stored.

    Returns:
        `True` if the signal was stored, `False` if one with this key was sent before.

    Raises:
        BadArgument: The name, the key or the thread is empty.
        Unserializable: The value cannot be stored. Nothing was stored.
    """
    check_signal_name(name)
    check_name("thread_id", thread_id)
    if key is not None:
        check_name("key", key)
    if waits.is_reserved(value):
        raise BadArgument(
            f"perdure uses this value itself, for waits that expire: pass another one to the "
            f"signal {name!r}."
        )
    now = on.clock.now()
    stored: bool = yield store_signal(
        on.serializer, thread_id, call_key() or new_id(), name, key, value, now
    )
    on.wake()
    return stored
