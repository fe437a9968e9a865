"""The lease of a claimed run: its token, and the fence that makes the token count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from perdure.journal import Op, Statement
from perdure.operations.runs import RunRow

_numbers = count()


@dataclass(frozen=True)
class Lease:
    """One claim of a run. A write with its token is refused once the run is claimed again."""

    row: RunRow
    """The run as it was claimed."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Of this lease in this process: a database that went back gives tokens again."""

    @property
    def thread_id(self) -> str:
        return self.row.thread_id

    @property
    def run_id(self) -> str:
        return self.row.id

    @property
    def token(self) -> int:
        return self.row.token

    @property
    def name(self) -> str:
        """Unique among all claims of all runs in this process."""
        return f"{self.run_id}/{self.token}/{self.number}"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the fence."""
        return {"thread_id": self.thread_id, "id": self.run_id, "token": self.token}

    def fenced(self, statements: Sequence[Statement] = ()) -> Op[None]:
        """An operation that is refused if the lease is lost."""
        fence = Statement("fence", self.params)
        return Op("fenced", [fence, *statements], lambda rows: None, write=True)
