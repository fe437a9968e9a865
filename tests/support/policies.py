"""What the tests of effect policies share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import StateGraph

from tests.support.agents import Log, chain

HOUR = timedelta(hours=1)
WAYS = ["runtime", "runtime-async", "saver", "saver-async"]
every_way = pytest.mark.parametrize("way", WAYS)


def one(function: Any, *args: Any) -> StateGraph[Any]:
    """A graph of one node that makes one call."""

    async def node(state: Log) -> Log:
        return {"log": [await function(*args)]}

    return chain(node)
