"""Errors that several modules raise: something is unknown, or a campaign's state forbids it."""

from __future__ import annotations

from .database import Row


class Unknown(LookupError):
    """There is no such campaign, contact or message."""


class WrongState(ValueError):
    """The state of a campaign does not allow this. Nothing was changed."""

    def __init__(self, row: Row, verb: str, what_to_do: str) -> None:
        super().__init__(
            f"Campaign {row['name']!r} is {row['state']} and cannot be {verb}: {what_to_do}"
        )
        self.campaign_id, self.state = row["id"], row["state"]


class ChangedMeanwhile(ValueError):
    """The campaign changed after its preview was made. Nothing was written."""

    def __init__(self, row: Row, seen: int) -> None:
        super().__init__(
            f"Campaign {row['name']!r} has changed: it is at version {row['version']}, "
            f"and the preview showed version {seen}. Nothing was changed; look at a new preview."
        )
        self.campaign_id, self.version = row["id"], row["version"]


def refuse_stopped(row: Row, verb: str) -> None:
    """Raise `WrongState` for a campaign that was stopped."""
    if row["state"] == "stopped":
        raise WrongState(row, verb, "a stop is final. Create another one.")
