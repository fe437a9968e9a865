"""Fixtures of the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import perdure
from perdure.runtime import Runtime
from perdure.types import Retry
from tests.support.ui import Person, ui_server


@pytest.fixture
def rt(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[Runtime]:
    """A runtime with the graphs that the test module has in `GRAPHS`, each tried once."""
    with perdure.Runtime(sqlite_url) as found:
        for name, graph in getattr(request.module, "GRAPHS", {}).items():
            found.register(graph, name=name, retry=Retry(attempts=1))
        yield found


@pytest.fixture
def person(rt: Runtime) -> Iterator[Person]:
    """Somebody who is signed in where the test module's runtime is served."""
    with ui_server(rt, worker=False) as found:
        yield found
