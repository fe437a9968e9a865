"""Fixtures of the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.runtime import Runtime
from tests.support.ui import Person, ui_server


@pytest.fixture
def person(rt: Runtime) -> Iterator[Person]:
    """Somebody who is signed in where the test module's runtime is served."""
    with ui_server(rt, worker=False) as found:
        yield found
