"""People: who is written to, and who is not any more."""

from __future__ import annotations

from ..app import App
from . import commands


@commands.command()
def remove(address: str) -> None:
    """Write to a contact no more."""
    with App() as app:
        ended = app.remove(address)
    print(f"{len(ended)} campaign{'s' * (len(ended) != 1)} ended for {address}")
