"""The filter of the inbox, as query parameters.

?kind=question&graph=campaign&label=team=blue&assignee=me&age=1d&expires=soon
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from perdure.commands.inbox import InboxKind, InboxQuery
from perdure.commands.run_search import labels_in
from perdure.server.ui.page import Ui

ME, FREE = "me", "unassigned"
"""Special values of `assignee`; any other value is a name."""
KINDS: Mapping[InboxKind, str] = {
    InboxKind.QUESTION: "Questions",
    InboxKind.EFFECT: "Unknown effects",
    InboxKind.HELD: "Held runs",
    InboxKind.REFLECTION: "Failed reflections",
}
AGES: Mapping[str, tuple[timedelta, str]] = {
    "1h": (timedelta(hours=1), "over an hour"),
    "1d": (timedelta(days=1), "over a day"),
    "7d": (timedelta(days=7), "over a week"),
    "30d": (timedelta(days=30), "over 30 days"),
}
"""Values of `age`: waiting for at least that long."""
LONGEST = 500


@dataclass(frozen=True)
class InboxFilter:
    """A filter of the inbox. Empty fields match everything."""

    kind: str = ""
    graph: str = ""
    label: str = ""
    assignee: str = ""
    age: str = ""
    expires: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> InboxFilter:
        """The filter in an address. Invalid values are ignored."""
        found = {one.name: query.get(one.name, "").strip()[:LONGEST] for one in fields(cls)}
        kind = found["kind"] if found["kind"] in [*InboxKind] else ""
        age = found["age"] if found["age"] in AGES else ""
        expires = "soon" if found["expires"] == "soon" else ""
        return cls(**{**found, "kind": kind, "age": age, "expires": expires})

    @property
    def written(self) -> dict[str, str]:
        """The parameters of an address."""
        return {name: text for name, text in vars(self).items() if text}

    def query(self, ui: Ui) -> InboxQuery:
        """The query for this viewer."""
        names = {"": None, ME: ui.actor, FREE: ""}
        return InboxQuery(
            kinds=(InboxKind(self.kind),) if self.kind else (),
            graph=self.graph,
            labels=labels_in([self.label]) if self.label else (),
            assignee=names.get(self.assignee, self.assignee),
            until=ui.now - AGES[self.age][0] if self.age else None,
            soon=ui.now if self.expires else None,
        )
