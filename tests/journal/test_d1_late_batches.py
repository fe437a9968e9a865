"""A batch that is cut off from us and arrives late is not run after the one that took its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from perdure.errors import Unavailable
from perdure.journal import Journal, connect
from tests.support.entries import add, entries
from tests.support.proxy import FaultyProxy, Reply
from tests.support.raw import execute


class HoldingProxy(FaultyProxy):
    """Holds each request that `catches` picks; its sender is cut off."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.catches: Callable[[bytes], bool] = lambda body: False
        self.held: list[Callable[[], int]] = []
        """Each passes a held request on, and returns the status of D1's answer."""

    def forwarded(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        forward = partial(super().forwarded, method, path, headers, body)
        if self.catches(body):
            self.held.append(lambda: forward().status)
            raise ConnectionAbortedError
        return forward()


@pytest.fixture
def proxy(d1_url: str) -> Iterator[HoldingProxy]:
    with HoldingProxy(d1_url) as proxy:
        yield proxy


@pytest.fixture
def journal(proxy: HoldingProxy) -> Iterator[Journal]:
    journal = connect(proxy.url)
    yield journal
    journal.close()


@pytest.fixture
def impatient(proxy: HoldingProxy) -> Iterator[Journal]:
    journal = connect(proxy.url, deadline=1.0)
    yield journal
    journal.close()


def catch_first(proxy: HoldingProxy, word: bytes) -> None:
    """Hold the first request that has this word in it."""
    proxy.catches = lambda body: word in body and not proxy.held


def test_a_batch_that_arrives_after_it_was_sent_again_is_refused(
    proxy: HoldingProxy, journal: Journal, d1_url: str
) -> None:
    catch_first(proxy, b"INSERT INTO perdure_writes")
    journal.do(add(1))
    execute(d1_url, "DELETE FROM perdure_writes")  # so that the late one would be seen
    [late] = proxy.held
    assert late() == 409
    assert journal.do(entries()) == []


def test_a_batch_that_was_run_before_it_was_revoked_is_found_by_its_key(
    proxy: HoldingProxy, journal: Journal
) -> None:
    def catch(body: bytes) -> bool:
        if b"INSERT INTO perdure_revoked" in body:
            assert proxy.held[0]() == 200
        return b"INSERT INTO perdure_writes" in body and not proxy.held

    proxy.catches = catch
    journal.do(add(1))
    assert journal.do(entries()) == [1]


def test_a_batch_stays_revoked_if_the_answer_to_that_is_lost_too(
    proxy: HoldingProxy, journal: Journal
) -> None:
    def catch(body: bytes) -> bool:
        words = [b"INSERT INTO perdure_writes", b"INSERT INTO perdure_revoked"]
        return len(proxy.held) < 2 and words[len(proxy.held)] in body

    proxy.catches = catch
    journal.do(add(1))
    batch, revoking = proxy.held
    assert (revoking(), batch()) == (200, 409)
    assert journal.do(entries()) == [1]


def test_while_a_batch_cannot_be_revoked_nothing_else_is_sent_or_read(
    proxy: HoldingProxy, impatient: Journal
) -> None:
    proxy.catches = lambda body: (
        b"INSERT INTO perdure_writes" in body or b"INSERT INTO perdure_revoked" in body
    )
    with pytest.raises(Unavailable, match="outcome is unknown"):
        impatient.do(add(1))
    with pytest.raises(Unavailable):
        impatient.do(entries())
    proxy.catches = lambda body: False
    assert impatient.do(entries()) == []
    assert proxy.held[0]() == 409
    assert impatient.do(add(2)) == [2]
