"""The keys of effects.

An effect's key is a hash of its thread, task, name and number in the task: the same for every
attempt, process and deploy. A business key comes from the caller's own arguments, and guards a call
across runs and threads. Pure.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from perdure.errors import BadArgument
from perdure.journal.names import check_text

MAX_BUSINESS_KEY = 200
"""Longest business key, in bytes, that is stored as it is; the end of a longer one is hashed."""


def hash_of(*parts: str) -> str:
    """The id of a task, or the key of an effect, from what it consists of."""
    return digest("\n".join(parts).encode())


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def effect_key(thread_id: str, task: str, name: str, n: int) -> str:
    """The key of the n-th call of an effect in a task."""
    return hash_of(thread_id, task, name, str(n))


def guard_key(name: str, business_key: str) -> str:
    """The key of a call that has a business key."""
    return f"{name}:{business_key}"


def business_key(name: str, key: Any) -> str:
    """What `key=` returned for effect `name`, as text that is the same in every process."""
    if key is None:
        raise BadArgument(f"The key of effect {name!r} is None: all its calls would share it.")
    try:
        compact = (",", ":")
        text = key if isinstance(key, str) else json.dumps(key, sort_keys=True, separators=compact)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"The key of effect {name!r} is {key!r}. Return text, or a value JSON can hold: {error}"
        ) from None
    data = text.encode(errors="surrogatepass")
    if len(data) > MAX_BUSINESS_KEY:
        text = f"{text[:40]}… {digest(data)}"
    return check_text("key", text)
