"""A process that commits to a journal, and tells each commit that was acknowledged."""

from __future__ import annotations

import itertools
from typing import Any

import perdure
from tests.support.fork_server import Tell


def commit(order: dict[str, Any], tell: Tell) -> None:
    """Store signals of several pages until it is killed, or as many as it is told."""
    with perdure.Client(order["url"]) as client:
        for number in itertools.islice(itertools.count(), order.get("times")):
            thread = f"{order['name']}-{number}"
            client.blocking.signal(thread, "stored", thread * 6000)
            tell("stored", thread)
