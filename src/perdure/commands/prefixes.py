"""Runs, waits and effects by the beginning of their ids."""

from __future__ import annotations

from perdure.errors import BadArgument, NotFound
from perdure.journal import Op, Plan, read_op

TABLES = {"run": "runs", "reflection": "runs", "wait": "waits", "effect": "effects"}

SHORTEST = 4
"""Minimum number of characters of an id."""

SHOWN = 5
"""Maximum number of candidates in an error; the statements return one more."""

Found = tuple[str, str, str]
"""An id, what it is of, and its thread."""


def resolve(what: str, prefix: str) -> Plan[str]:
    """The id of a run or wait, or the key of an effect, that begins with a prefix.

    Raises `NotFound`, or `BadArgument` if the prefix is too short or there are several.
    """
    found: list[Found] = yield _with_prefix(what, prefix)
    if found and found[0][0] == prefix:  # it sorts before those that it begins
        return prefix
    if not found:
        raise NotFound(what, prefix)
    if len(prefix) < SHORTEST:
        raise BadArgument(
            f"There is no {what} {prefix!r}: give its id, or at least {SHORTEST} characters of its "
            "beginning."
        )
    if len(found) > 1:
        named = "; ".join(f"{id} ({of}, thread {thread})" for id, of, thread in found[:SHOWN])
        more = "; and more" if len(found) > SHOWN else ""
        raise BadArgument(
            f"More than one {what} begins with {prefix}; give more of its id: {named}{more}."
        )
    return found[0][0]


def some(what: str, prefix: str) -> Plan[list[str]]:
    """The ids that begin with a prefix; none if there are more than `SHOWN`."""
    found: list[Found] = yield _with_prefix(what, prefix)
    return [id for id, _, _ in found] if len(found) <= SHOWN else []


def _with_prefix(what: str, prefix: str) -> Op[list[Found]]:
    params = {"table": TABLES[what], "first": prefix, "last": f"{prefix}\U0010ffff"}
    return read_op("ids_of_prefix", params, lambda rows: [(a, b, c) for a, b, c in rows[0]])
