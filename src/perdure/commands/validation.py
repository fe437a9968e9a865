"""Validation of callers' arguments, before anything is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from perdure.errors import BadArgument
from perdure.journal.names import check_text as check_text
from perdure.journal.names import new_id as new_id
from perdure.langgraph_port import checkpoint_names

E = TypeVar("E", bound=StrEnum)


def check_member(kind: type[E], what: str, given: str) -> E:
    """A member of an enum, from itself or its value."""
    try:
        return kind(given)
    except ValueError:
        raise BadArgument(f"{given!r} is not {what}; use one of {', '.join(kind)}.") from None


def check_command(input: Any) -> None:
    """Refuse a LangGraph `Command` that writes to a channel of LangGraph's own."""
    if (name := checkpoint_names.reserved_name(input)) is not None:
        raise BadArgument(
            f"The command names {name!r}, which LangGraph reserves. Update only keys of the state, "
            "and go only to nodes."
        )


def check_name(name: str, given: str) -> str:
    """A name: a text that is not empty."""
    if not given:
        raise BadArgument(f"{name} must not be empty.")
    return check_text(name, given)


def check_duration(name: str, given: timedelta, least: timedelta = timedelta(0)) -> timedelta:
    if not isinstance(given, timedelta):
        raise BadArgument(
            f"{name} must be a timedelta, such as timedelta(seconds=5), not {given!r}."
        )
    if given < least:
        raise BadArgument(f"{name}={given} must be at least {least}.")
    return given


def check_time(name: str, given: datetime) -> datetime:
    if getattr(given, "tzinfo", None) is None:
        raise BadArgument(f"{name} must be a datetime with a time zone, not {given!r}.")
    return given


def check_limit(limit: int) -> int:
    if limit < 1:
        raise BadArgument(f"limit={limit} must be at least 1.")
    return limit


def check_tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise BadArgument(f"tags must be a list of texts, not the single text {tags!r}.")
    return [str(tag) for tag in tags]


def check_dict(name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise BadArgument(f"{name} must be a dict, not {given!r}.")
    return dict(given or {})


def check_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = check_dict("config", config)
    if "callbacks" in checked:
        raise BadArgument("config['callbacks'] cannot be stored; pass them to the graph instead.")
    inner = checked.get("configurable") or {}
    for name in ("thread_id", "checkpoint_id", "run_id"):
        if name in inner:
            raise BadArgument(
                f"config['configurable'][{name!r}] is set by the runtime; leave it out."
            )
    return checked


GRACE = timedelta(seconds=10)

PAGE = 100
