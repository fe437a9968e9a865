"""Ids, and names that a database can hold: of threads, checkpoints, signals, keys."""

from __future__ import annotations

import functools
import secrets
import time
from uuid import UUID

from perdure.errors import BadArgument, Unserializable, forgot_await

LONGEST = {"thread_id": 1024, "checkpoint_ns": 1024, "task_path": 8192, "comment": 65536}
"""Bytes of names. Most are keys, and PostgreSQL's index takes 2,700 bytes of them together."""


def check_text(name: str, text: str) -> str:
    """Refuse a name that one of the databases cannot hold."""
    if not isinstance(text, str):
        raise BadArgument(f"{name} must be a str, not {type(text).__name__}.{forgot_await(text)}")
    longest = LONGEST.get(name, 256)
    if "\x00" in text:
        raise Unserializable(f"{name} {text!r}", "it has a NUL character")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise Unserializable(f"{name} {text!r}", "it has a lone surrogate") from None
    if size > longest:
        raise Unserializable(f"{name} {text[:60]!r}…", f"it is over {longest} bytes long")
    return text


def maybe_text(name: str, text: str | None) -> str | None:
    """The same of a name that may be missing."""
    return None if text is None else check_text(name, text)


def check_id(what: str, id: object) -> str:
    """The id of a thread, run, wait or effect; not the thing, nor a coroutine that returns it."""
    its = "thread_id" if what == "thread" else "id"
    hint = f" Pass its {its}." if hasattr(id, "thread_id") else forgot_await(id)
    if hint:
        raise BadArgument(f"The id of a {what} must be a str, not {type(id).__name__}.{hint}")
    return str(id)


def maybe_id(what: str, id: object) -> str | None:
    """The same of an id that may be missing."""
    return None if id is None else check_id(what, id)


random_number = functools.partial(secrets.randbits, 62)
"""A random number, independent of how an agent seeds `random`."""


def new_id() -> str:
    """A UUID of version 7: milliseconds, their fraction, random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | fraction << 64
    return str(UUID(int=value | 2 << 62 | secrets.randbits(62)))
