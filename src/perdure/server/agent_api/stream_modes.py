"""Stream modes that clients request, and the LangGraph modes that a run keeps for them.

Clients have two modes for messages: `messages` sends each message as received so far, and
`messages-tuple` the pieces as LangGraph emits them. A run keeps the pieces for both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.server.json_errors import ApiError

ACCUMULATED, PIECES = "messages", "messages-tuple"
"""The two modes for messages."""
WIRE_MODES = (
    *("values", "updates", ACCUMULATED, PIECES, "custom", "tasks", "checkpoints", "debug"),
    "events",
)
DEFAULT = ("values",)


def parse_modes(given: Any) -> tuple[str, ...]:
    """The modes of a run's body: a name, a list, or nothing, which means `values`."""
    if given is None or given == "":
        return DEFAULT
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence):
        raise ApiError(422, "stream_mode must be a mode or a list of modes.")
    for name in names:
        if not isinstance(name, str) or name not in WIRE_MODES:
            known = ", ".join(WIRE_MODES)
            raise ApiError(422, f"The stream mode {ascii(name)[:60]} is not one of {known}.")
    return tuple(dict.fromkeys(names)) or DEFAULT


def parse_filter(given: Iterable[str]) -> tuple[str, ...] | None:
    """The modes of a query, repeated or as a JSON list. None: no filter was given."""
    names: list[Any] = []
    for one in given:
        if one.lstrip().startswith("["):
            try:
                names += json.loads(one)
            except (ValueError, RecursionError):
                raise ApiError(422, "stream_mode is not a JSON list of modes.") from None
        elif one.strip():
            names.append(one.strip())
    return parse_modes(names) if names else None


def kept_modes(modes: Iterable[str]) -> tuple[str, ...]:
    """The LangGraph modes that a run must keep so that these modes can be sent."""
    return tuple(dict.fromkeys("messages" if one == PIECES else one for one in modes))


def run_modes(setup: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """The modes that a run was started with, and whether its subgraphs are streamed too."""
    kept = setup.get("stream") or {}
    modes = [PIECES if one == ACCUMULATED else one for one in kept.get("modes", ())]
    return tuple(kept.get("wire") or modes), bool(kept.get("subgraphs"))
