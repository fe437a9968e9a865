"""The filters of the list of runs, as query parameters.

    ?state=held&state=failed&graph=campaign&label=team=blue&since=7d&text=mailbox

A time is how long ago (`90m`, `24h`, `7d`, `4w`), or a date and time in the viewer's zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from perdure.commands.run_search import RunQuery, labels_in
from perdure.server.errors import ApiError
from perdure.server.ui.page import Ui
from perdure.types import State

AGES = (
    ("1h", "last hour"),
    ("24h", "last 24 hours"),
    ("7d", "last 7 days"),
    ("30d", "last 30 days"),
)
"""Choices for when a run was started."""
NAMES = ("state", "graph", "label", "since", "until", "text", "thread", "parent")
LONGEST = 1000
"""Maximum length of a filter."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Filters:
    """The filters of one request: the search, and the text as written."""

    query: RunQuery
    written: Mapping[str, list[str]]

    @staticmethod
    def check_names(ui: Ui, *others: str) -> None:
        """Raise `ApiError` for a parameter that is neither a filter nor one of the others. A
        misspelt filter would list every run, above buttons that act on all of them."""
        for name in ui.request.query_params:
            if name not in (*NAMES, *others):
                raise ApiError(422, f"There is no filter {name!a:.50}. Use {', '.join(NAMES)}.")

    @classmethod
    def of(cls, ui: Ui, pairs: list[tuple[str, str]] | None = None) -> Filters:
        """The filters in the address, or in the fields of a form. Raises `ApiError`."""
        given = ui.request.query_params.multi_items() if pairs is None else pairs
        written: dict[str, list[str]] = {}
        for name, one in given:
            if name in NAMES and (text := one.strip()):
                if len(text) > LONGEST:
                    raise ApiError(422, f"The filter {name} is too long.")
                written.setdefault(name, []).append(text)
        first = {name: some[0] for name, some in written.items()}
        query = RunQuery(
            states=frozenset(_state(one) for one in written.get("state", ())),
            graph=first.get("graph", ""),
            labels=labels_in(written.get("label", ())),
            since=_time(ui, "since", first.get("since")),
            until=_time(ui, "until", first.get("until")),
            text=first.get("text", ""),
            thread_id=first.get("thread", ""),
            parent_id=first.get("parent", ""),
        )
        return cls(query, written)

    def __bool__(self) -> bool:
        return bool(self.query)

    def get(self, name: str) -> str:
        """One filter as it was written."""
        return self.written.get(name, [""])[0]

    def address(self, **changes: Any) -> dict[str, Any]:
        """These filters with changes, as parameters of an address. None leaves one out."""
        every: dict[str, Any] = {**self.written, **changes}
        return {name: one for name, one in every.items() if one}

    def on_thread(self, thread_id: str) -> Filters:
        """The same filters, of one thread instead of a text."""
        written = {name: some for name, some in self.written.items() if name != "text"}
        query = replace(self.query, text="", thread_id=thread_id)
        return Filters(query, {**written, "thread": [thread_id]})

    def toggled(self, state: State) -> dict[str, Any]:
        """The address with a state chosen, or no longer chosen."""
        chosen = self.written.get("state", [])
        now = [one for one in chosen if one != state.value]
        return self.address(state=now if len(now) < len(chosen) else [*chosen, state.value])


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        names = ", ".join(State)
        raise ApiError(422, f"There is no state {text!a:.50}. Use {names}.") from None


def _time(ui: Ui, name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if found := re.fullmatch(r"(\d{1,6})([mhdw])", text):
            return ui.now - timedelta(**{_UNITS[found[2]]: int(found[1])})
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=ui.zone)
        at.timestamp()  # some dates near the years 1 and 9999 do not exist in UTC
        return at
    except (ValueError, OverflowError, OSError):
        problem = f"{name} must be a time span such as 7d, or a date such as 2026-05-01T09:00."
        raise ApiError(422, problem) from None
