"""LangGraph's JavaScript clients, as tests run them: programs of `tests/clients` under Node.js.

answers = node("every_method.mjs", "langgraph-sdk-1.12", server.url)
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perdure
from perdure.testing.d1 import find_node
from perdure.types import Retry
from tests.clients.graphs import GRAPHS
from tests.support.agent_server import served

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".js-clients"
PROGRAMS = ROOT / "tests" / "clients"

SDKS = ("langgraph-sdk-1.12", "langgraph-sdk-latest")
"""Newest code, and the older code that npm calls `latest`."""


def node(program: str, *arguments: str, timeout: float = 120) -> Any:
    """Run a program to its end, and return the JSON that it printed."""
    if not (INSTALLED / "node_modules").is_dir():
        raise RuntimeError(f"{INSTALLED} is not there. Install it: `make js-clients`.")
    done = subprocess.run(
        [find_node(), str(PROGRAMS / program), *arguments],
        env={**os.environ, "JS_CLIENTS": str(INSTALLED)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{program} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


@contextmanager
def agent_server(url: str, **options: Any) -> Iterator[str]:
    """Address of a server of the graphs of `tests/clients`, on the journal at `url`.

    The environment variable `AGENT_SERVER_URL` names another one, such as `langgraph dev`: that
    is how these tests were checked against the server whose wire we speak.
    """
    if other := os.environ.get("AGENT_SERVER_URL"):
        yield other
        return
    runtime = perdure.Runtime(url, store=True)
    for name, graph in GRAPHS.items():
        runtime.register(graph, name=name, retry=Retry(attempts=1))
    with served(runtime, **options) as server:
        yield server.url
