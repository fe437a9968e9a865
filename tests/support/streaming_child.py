"""A process that serves the streaming agents, forked for tests that end it."""

from __future__ import annotations

from typing import Any

import uvicorn

from perdure.server.app import make_app
from perdure.server.options import ServerOptions
from tests.support.fork_server import Tell
from tests.support.streaming_agents import Gate, streaming_runtime


def serve(order: dict[str, Any], tell: Tell) -> None:
    """Serve the journal `url` at `port` of loopback until a signal comes."""
    app = make_app(streaming_runtime(order["url"], Gate()), ServerOptions())
    uvicorn.run(app, host="127.0.0.1", port=order["port"], log_level="warning")
