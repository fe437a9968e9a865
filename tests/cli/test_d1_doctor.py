"""`perdure d1 doctor`, on a real D1 in workerd."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import perdure
from perdure.cli import d1
from perdure.journal import connect
from perdure.journal.d1_client import D1Client
from perdure.testing.d1 import Workerd
from tests.support.commands import Command, Told

pytestmark = [pytest.mark.slow, pytest.mark.d1, pytest.mark.d1_sample]

CHECKS = ["address", "schema", "latency", "clock", "limits", "cron", "size"]


@pytest.fixture
def server(d1_server: Workerd) -> Workerd:
    d1_server.start()
    return d1_server


@pytest.fixture
def n(empty_d1_url: str) -> int:
    """The number of a database with nothing in it."""
    return int(empty_d1_url.split("/")[-2])


def tables(url: str) -> list[Any]:
    """Everything in a database, but D1's own."""
    with closing(D1Client(url)) as client:
        [rows] = client.batch([("SELECT name, sql FROM sqlite_master ORDER BY name", ())])
    return [row for row in rows if not row[0].startswith(("_cf", "sqlite"))]


def results(told: Told) -> dict[str, str]:
    """What the doctor says of each check."""
    return {line.split()[1]: line.split()[0] for line in told.out.splitlines()}


def test_a_database_is_checked_and_nothing_is_left_in_it(
    server: Workerd, n: int, command: Command
) -> None:
    url = server.url(n)
    told = command("d1", "doctor", url).done
    found = results(told)
    assert list(found) == CHECKS
    assert {name for name, result in found.items() if result == "note"} == {"schema", "cron"}
    assert set(found.values()) == {"ok", "note"}
    assert "there is no journal yet" in told.out
    assert tables(url) == []
    connect(url).close()
    before = tables(url)
    checked = {one["check"]: one for one in command("d1", "doctor", url, "--json").done.json}
    assert checked["schema"]["result"] == "ok"
    assert re.fullmatch(r"\d+, the newest", checked["schema"]["detail"])
    assert tables(url) == before


def test_the_journal_of_a_newer_perdure_fails(server: Workerd, n: int, command: Command) -> None:
    with closing(D1Client(server.url(n))) as client:
        client.batch([("CREATE TABLE perdure_schema (version)", ())])
        client.batch([("INSERT INTO perdure_schema VALUES (99)", ())])
    told = command("d1", "doctor", server.url(n))
    assert (told.code, results(told)["schema"]) == (1, "failed")
    assert "Upgrade perdure" in told.out


class Host(BaseHTTPRequestHandler):
    """Answers a tick; everything else with a page that repeats the secret."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        self._answer(status, f"<html>{status}\n{self.headers['Authorization']}</html>")

    def do_POST(self) -> None:
        if self.path == "/cron/tick":
            self._answer(200, '{"claimed": 3}')
        else:
            self.do_GET()

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_last_tick_is_shown_with_its_age(
    server: Workerd, n: int, command: Command, host: str
) -> None:
    url = server.url(n)
    assert server.trigger_cron(n, tick_url="http://127.0.0.1:9/", tick_secret="x") is not None
    failed = command("d1", "doctor", url)
    assert (failed.code, results(failed)["cron"]) == (1, "failed")
    assert re.search(r"the tick \d+s ago failed at attempt 3: .*[^.]\. Check TICK_URL", failed.out)
    assert server.trigger_cron(n, tick_url=f"http://{host}/cron/tick", tick_secret="x") is None
    ticked = command("d1", "doctor", url).done
    assert re.search(r'^ok +cron +ticked \d+s ago: {"claimed": 3}$', ticked.out, re.MULTILINE)
    with closing(D1Client(url)) as client:
        old = "json_set(result, '$.time', '2026-01-01T00:00:00Z')"
        client.batch([(f"UPDATE perdure_cron SET result = {old}", ())])
    assert results(command("d1", "doctor", url).done)["cron"] == "note"


def test_an_address_that_is_wrong_is_the_only_line(
    server: Workerd, command: Command, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d1, "DEADLINE", 0.3)
    secret = server.secret
    wrong = {
        server.url(0).replace(secret, "w" * 40): "refused the secret.*PERDURE_SECRET",
        server.url(999): "is not the address",
        f"d1://:{secret}@127.0.0.1:9/": "no connection.*Check the address",
        f"d1://{secret}@127.0.0.1/": "malformed",
        f"d1://:{secret}%0A@127.0.0.1/": "line break",
        f"d1://:{secret}%20é@127.0.0.1/": "not ASCII",
        f"d1://:{secret}@host..example/": "malformed",
        f"d1://127.0.0.1:{server.port}/0/": "needs the secret",
    }
    for status in (200, 403, 404, 429, 500):
        wrong[f"d1://:{secret}@{host}/{status}/"] = f"{status} Bearer \\*\\*\\*"
    for url, words in wrong.items():
        told = command("d1", "doctor", url)
        assert (told.code, told.err, results(told)) == (1, "", {"address": "failed"}), url
        assert re.search(words, told.out), (url, told.out)
        assert secret not in told.out


def test_what_is_no_d1_url_is_refused(server: Workerd, command: Command) -> None:
    assert "d1://:SECRET@host/" in command("d1", "doctor", "sqlite:///x.db").refused
    twice = command("d1", "doctor", server.url(0), "--at", server.url(1)).refused
    other = command("d1", "doctor", server.url(0), server.url(1)).refused
    assert server.secret not in twice + other


def test_a_worker_of_another_protocol_is_named(
    server: Workerd, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.d1.PROTOCOL", 2)
    told = command("d1", "doctor", server.url(0))
    assert (told.code, results(told)) == (1, {"address": "failed"})
    assert "speaks protocol 1, and this perdure 2" in told.out
    assert "npx wrangler deploy" in told.out


def test_a_clock_that_is_off_and_a_full_database_fail(
    server: Workerd, n: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d1, "CLOCK_TOLERANCE", -1.0)
    monkeypatch.setattr(d1, "LARGEST_DATABASE", 1)
    told = command("d1", "doctor", server.url(n))
    assert told.code == 1
    assert (results(told)["clock"], results(told)["size"]) == ("failed", "failed")
    assert "set its clock" in told.out
    assert "perdure prune" in told.out


def test_a_plan_that_takes_fewer_statements_is_named_and_the_rest_is_checked(
    server: Workerd, n: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = D1Client.batch

    def free_plan(self: D1Client, calls: Sequence[Any], *, idempotent: bool = False) -> Any:
        if len(calls) > 50:
            raise perdure.Unavailable("Too many API requests by single worker invocation")
        return batch(self, calls, idempotent=idempotent)

    monkeypatch.setattr(D1Client, "batch", free_plan)
    told = command("d1", "doctor", server.url(n))
    assert told.code == 1
    assert "Workers Paid" in told.out
    assert [name for name, one in results(told).items() if one == "failed"] == ["limits"]
    assert list(results(told)) == CHECKS
