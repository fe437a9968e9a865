"""A batch that is cut off from us and arrives late is not run after the one that took its place."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from perdure.errors import Unavailable
from perdure.journal import Journal, connect
from tests.support.entries import add, entries
from tests.support.raw import execute


class HoldingProxy:
    """Passes requests on to D1. One that `catches` says is cut off from its sender, and held."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.catches: Callable[[bytes], bool] = lambda body: False
        self.held: list[Callable[[], int]] = []
        """Each passes a held request on, and gives D1's answer to it."""
        proxy, upstream = self, f"http://{parts.hostname}:{parts.port}"

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                names = ("Authorization", "Content-Type")
                headers = {name: self.headers[name] for name in names}
                request = urllib.request.Request(upstream + self.path, body, headers)
                if proxy.catches(body):
                    proxy.held.append(lambda: answer(request)[0])
                    self.close_connection = True
                    return
                status, reply = answer(request)
                self.send_response(status)
                self.send_header("X-Perdure", "1")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        port = self.server.server_address[1]
        self.url = url.replace(f":{parts.port}/", f":{port}/")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def answer(request: urllib.request.Request) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture
def proxy(d1_url: str) -> Iterator[HoldingProxy]:
    proxy = HoldingProxy(d1_url)
    yield proxy
    proxy.close()


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
