"""What an observer sees of the runtime or client that it is attached to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from perdure.errors import BadArgument
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.serde.serializer import Serializer
from perdure.service.failures import Failures


class Observed(Protocol):
    """The engine of a runtime or client: `service.local_engine`."""

    serializer: Serializer

    failures: Failures

    @property
    def journal(self) -> Journal:
        """The journal. Its first use opens it."""

    @property
    def is_open(self) -> bool:
        """Whether the journal has been opened."""

    @property
    def clock(self) -> Clock:
        """The clock of the journal, which it opens."""

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks that this process has. A sink adds its own."""

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint."""


def check_is_new(observer: object, attached: object) -> None:
    """Raise if an observer observes a runtime or client already, perhaps one that was closed."""
    if attached is not None:
        raise BadArgument(
            f"This {type(observer).__name__} observes another runtime or client already: make one "
            "for each."
        )
