"""Graphs behind a real server; a module that serves others has a `server` of its own."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agent_server import AgentServer
from tests.support.wire_agents import wire_server


@pytest.fixture
def server(url: str) -> Iterator[AgentServer]:
    with wire_server(url) as running:
        yield running


@pytest.fixture
def client(server: AgentServer) -> Any:
    """LangGraph's blocking client."""
    return server.sync_client()
