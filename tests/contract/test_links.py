"""A link decides once, and only when its form is submitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

import perdure
import perdure.testing
from perdure import Runtime
from perdure.testing import TemporaryRuntime
from tests.support.agent_server import create_token
from tests.support.agent_server import served as serve
from tests.support.reviewed_agents import begin, reviewed_agent
from tests.support.ui import Person

ANA = "ana@example.com"


BASE = "https://agents.example.com"


@pytest.fixture
def runtime(sqlite_url: str) -> Iterator[TemporaryRuntime]:
    found = perdure.testing.runtime(sqlite_url, public_url=BASE)
    yield found
    found.close()


@contextmanager
def served(runtime: Runtime) -> Iterator[Person]:
    """Somebody with a browser who is not signed in, at a server that requires it."""
    create_token(runtime.url, "op", "admin")
    with serve(runtime, ui=True, worker=False) as server:
        yield Person(server.http(follow_redirects=True), server)


def link(runtime: Runtime, wait: Any, to: str = ANA, **options: Any) -> str:
    """The path of a new link."""
    url = urlsplit(runtime.blocking.link(wait.id, to=to, **options))
    return f"{url.path}?{url.query}"


def mailer(runtime: Runtime, **options: Any) -> tuple[Any, Any]:
    agent, sent = reviewed_agent(
        {"to": "bo", "body": "Hello"}, says="It is only a test.", **options
    )
    _, wait = begin(runtime, "mailer", agent)
    return wait, sent


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_opening_a_link_decides_nothing(runtime: TemporaryRuntime, method: str) -> None:
    """Scanners of mail servers open every link, with and without a body, as often as they like."""
    wait, _ = mailer(runtime)
    with served(runtime) as scanner:
        address = link(runtime, wait)
        before = runtime.blocking.events(wait.run_id)
        for agent in ("curl/8", "Mozilla/5.0", ""):
            answer = scanner.http.request(
                method, address, headers={"user-agent": agent, "purpose": "prefetch"}
            )
            assert answer.status_code == 200
        for other in (f"{address}&decision.0=approve&how=decisions", f"{address}&quick=0"):
            assert scanner.http.request(method, other).status_code == 200
        assert runtime.blocking.events(wait.run_id) == before
        assert len(runtime.blocking.waits()) == 1
