"""The state of a thread as a conversation: its messages in order, and the other channels.

A tool's result is shown with its call. The inputs of the runs tell which run a message belongs to:
a person's message begins the run that was started with it, and the messages up to the next person's
belong to that run. If a run in between was started with something else, the run is left unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from perdure.views.formatting import arguments, shorten
from perdure.views.message_parts import (
    Call,
    MessageParts,
    Speaker,
    is_message,
    message_parts,
)

CHANNEL = "messages"
"""The channel that holds the messages of most graphs."""
BRIEF = 80
"""Maximum number of characters of the arguments of a call in a line."""
MOST = 200
"""Maximum number of messages that are shown at a time."""


@dataclass(frozen=True)
class Turn:
    """A run of a thread, and what it was started with."""

    run_id: str
    input: Any
    has_begun: bool = True


@dataclass(frozen=True)
class MadeCall:
    """A tool call, with its result if there is one."""

    call: Call
    result: MessageParts | None = None

    @property
    def brief(self) -> str:
        """Its arguments in one line: `to='ana', n=7`."""
        given = self.call.arguments
        return shorten(arguments(given) if isinstance(given, Mapping) else str(given or ""), BRIEF)


@dataclass(frozen=True)
class Bubble:
    """One message of a conversation."""

    number: int
    """Its place in the channel, from 0."""
    parts: MessageParts
    calls: tuple[MadeCall, ...] = ()
    run_id: str | None = None
    """The run that produced it or was started with it. None if unknown."""
    begins_run: bool = False
    """Whether it is the first message of that run."""


@dataclass(frozen=True)
class Conversation:
    """A thread as a chat."""

    bubbles: tuple[Bubble, ...] = ()
    """Oldest first."""
    earlier: int = 0
    """Number of messages before these."""
    total: int = 0
    queued: tuple[Bubble, ...] = ()
    """Messages to runs that have not begun."""
    values: Mapping[str, Any] | None = None
    """The other channels; None if the state is no mapping of channels."""

    @property
    def is_empty(self) -> bool:
        return not self.bubbles and not self.queued


def conversation(
    state: Any, turns: Sequence[Turn] = (), *, until: int | None = None, most: int = MOST
) -> Conversation:
    """A state as a conversation: the last `most` messages, or those before number `until`. `turns`
    are the runs of the thread, or the last of them, oldest first."""
    channel, messages = _messages(state)
    others = {name: one for name, one in state.items() if name != channel} if channel else state
    values = others if isinstance(others, Mapping) else None
    bubbles = _said_by(_bubbles(messages), turns)
    shown = [one for one in bubbles if until is None or one.number < until]
    earlier = max(0, len(shown) - most)
    return Conversation(
        tuple(shown[earlier:]), earlier, len(messages), _queued(turns, len(messages)), values
    )


def asked_in(given: Any) -> str:
    """The text of the last message of a person in the input of a run; empty if there is none."""
    if isinstance(given, str):
        return given.strip()
    if isinstance(given, Mapping) and not is_message(given):
        return asked_in(given.get(CHANNEL))
    if _is_pair(given):
        return given[1].strip() if given[0] in ("user", "human") else ""
    if isinstance(given, list | tuple):
        found = (asked_in(one) for one in reversed(given))
        return next((one for one in found if one), "")
    if is_message(given):
        parts = message_parts(given)
        return parts.text.strip() if parts.speaker is Speaker.PERSON else ""
    return ""


def _is_pair(given: Any) -> bool:
    """Whether it is a message in LangGraph's short form: ("user", "hi")."""
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, str) for x in given)


def _messages(state: Any) -> tuple[str | None, Sequence[Any]]:
    """The channel with the messages, and the messages."""
    if _are_messages(state):
        return None, state
    if not isinstance(state, Mapping):
        return None, ()
    found = {name: one for name, one in state.items() if _are_messages(one)}
    if not found:
        return None, ()
    name = CHANNEL if CHANNEL in found else max(found, key=lambda name: len(found[name]))
    return name, found[name]


def _are_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def _bubbles(messages: Iterable[Any]) -> list[Bubble]:
    """Messages, each tool's result with its call: the first one behind it with its id."""
    every = [Bubble(number, message_parts(one)) for number, one in enumerate(messages)]
    results: dict[str, list[Bubble]] = {}
    for one in every:
        if one.parts.speaker is Speaker.TOOL and one.parts.answers:
            results.setdefault(one.parts.answers, []).append(one)
    shown: list[Bubble] = []
    taken: set[int] = set()
    for one in every:
        made = []
        for call in one.parts.calls:
            later = [found for found in results.get(call.id, ()) if found.number > one.number]
            result = next((found for found in later if found.number not in taken), None)
            made.append(MadeCall(call, None if result is None else result.parts))
            taken |= set() if result is None else {result.number}
        if one.number not in taken:
            shown.append(replace(one, calls=tuple(made)))
    return shown


def _said_by(bubbles: list[Bubble], turns: Sequence[Turn]) -> list[Bubble]:
    """The same with their runs, where known."""
    asked = [asked_in(one.input) for one in turns]
    starts: list[tuple[int, int]] = []
    turn = 0
    for place, bubble in enumerate(bubbles):
        if bubble.parts.speaker is not Speaker.PERSON:
            continue
        text = bubble.parts.text.strip()
        found = next((n for n in range(turn, len(turns)) if text and asked[n] == text), None)
        if found is not None:
            starts.append((place, found))
            turn = found + 1
    begun = [n for n, one in enumerate(turns) if one.has_begun]
    made, end = list(bubbles), (len(bubbles), begun[-1] + 1 if begun else 0)
    for (place, number), (next_place, next_number) in pairwise([*starts, end]):
        for at in range(place, next_place):
            is_reply = made[at].parts.speaker is not Speaker.PERSON
            if at > place and not (is_reply and next_number <= number + 1):
                break
            made[at] = replace(made[at], run_id=turns[number].run_id, begins_run=at == place)
    return made


def _queued(turns: Sequence[Turn], number: int) -> tuple[Bubble, ...]:
    """What people said to runs that have not begun."""
    waiting = [(one.run_id, asked_in(one.input)) for one in turns if not one.has_begun]
    return tuple(
        Bubble(number + n, MessageParts(Speaker.PERSON, texts=(text,)), run_id=run_id)
        for n, (run_id, text) in enumerate(waiting)
        if text
    )
