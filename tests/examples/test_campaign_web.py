"""The link to unsubscribe: a page that changes nothing, and a POST that is kept once answered."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from examples.campaign.app import App
from examples.campaign.inbound import Inbound
from examples.campaign.web import routes
from tests.examples.campaigns import BO, HOST, PLAN, World, reply
from tests.examples.campaigns import office as office
from tests.examples.campaigns import sqlite_office as sqlite_office

INFO, NOBODY = "bo+news@example.org", "/unsubscribe/0123456789abcdef0123"
ONE_CLICK = {"List-Unsubscribe": "One-Click"}
HTML = {"Accept": "text/html,*/*"}


def link(office: World, address: str = BO) -> str:
    [row] = office.rows("SELECT token FROM contacts WHERE address = :address", address=address)
    return f"/unsubscribe/{row['token']}"


@pytest.fixture
def browser(sqlite_office: World) -> Iterator[TestClient]:
    with serving(sqlite_office.app) as client:
        yield client


def serving(app: App) -> TestClient:
    served = app.runtime.asgi(worker=False)
    served.routes.extend(routes(Inbound(app)))
    return TestClient(served)


def test_opening_the_link_changes_nothing_and_loads_nothing_else(
    sqlite_office: World, browser: TestClient
) -> None:
    sqlite_office.campaign()
    page = browser.get(link(sqlite_office), headers=HTML)
    assert page.status_code == 200
    assert "<button " in page.text
    assert "script" not in page.text
    assert "://" not in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "set-cookie" not in page.headers
    assert page.text == browser.get(NOBODY, headers=HTML).text
    assert browser.head(link(sqlite_office)).status_code == 200
    assert sqlite_office.member() == "active"
    assert sqlite_office.rows("SELECT * FROM messages") == []


def test_one_click_unsubscribes_the_person_once(office: World) -> None:
    office.campaign(PLAN, BO, INFO)
    office.drive()
    with serving(office.app) as client:
        for _ in range(2):
            answer = client.post(link(office, INFO), data=ONE_CLICK, follow_redirects=False)
            assert (answer.status_code, answer.history) == (200, [])
            assert answer.text == client.post(NOBODY, data=ONE_CLICK).text
    [row] = office.rows("SELECT kind, address, signalled FROM messages")
    assert row == {"kind": "unsubscribe", "address": INFO, "signalled": 1}
    assert len(office.rows("SELECT * FROM suppressions")) == 1
    office.drive()
    for address in (BO, INFO):
        office.ends("unsubscribed", address=address)
    office.receive(reply())
    office.nothing_more(sent=2)


def test_a_form_of_either_encoding_is_taken_and_nothing_else(
    sqlite_office: World, browser: TestClient
) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO, INFO)
    path = link(office)
    for body in (b"", b"x=y"):
        assert browser.post(path, content=body).status_code == 400
    for bad in ("/unsubscribe/x", f"{path}0", path[:-1]):
        assert browser.get(bad).status_code == 404
    assert browser.put(path).status_code == 405
    assert office.member() == "active"
    parts = {"List-Unsubscribe": (None, "One-Click")}
    page = browser.post(path, files=parts, headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "You are unsubscribed" in page.text
    assert office.member() == "unsubscribed"


def test_a_real_server_serves_the_link(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    for one in fields(office.app.settings):
        value = str(getattr(office.app.settings, one.name))
        monkeypatch.setenv(f"CAMPAIGN_{one.name.upper()}", value)
    monkeypatch.delitem(sys.modules, "examples.campaign.service", raising=False)
    service = importlib.import_module("examples.campaign.service")
    with socket.create_server((HOST, 0)) as listening:
        root = f"http://{HOST}:{listening.getsockname()[1]}{link(office)}"
        server = uvicorn.Server(uvicorn.Config(service.web(), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert httpx.get(root).status_code == 200
            assert httpx.post(root, data=ONE_CLICK).status_code == 200
        finally:
            server.should_exit = True
            thread.join(30)
            service.app.close()
    office.drive()
    office.ends("unsubscribed")
