"""Where a webhook may go: to no address of the worker's own network, and to no service that gives a
cloud's credentials away. Which Python runs this makes no difference."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

import perdure
from perdure.errors import BadArgument
from tests.support.agent_server import served
from tests.support.agents import Log, chain, opened
from tests.support.webhook_receiver import WebhookReceiver, receiving

METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
]
"""What gives a cloud's credentials to every caller: some look like any other address."""

METADATA_IN_DISGUISE = [
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.254.169.254.",
    "[::ffff:a9fe:a9fe]",
    "[::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1:a9fe:a9:fe00::]",
    "[64:ff9b:1:a9:fe:a9fe::]",
    "[64:ff9b:1:0:a9:fea9:fe00:0]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[2001:0:a9fe:a9fe::1]",
    "[2001:0:808:808:0:0:5601:5601]",
    "[2606:4700::5efe:a9fe:a9fe]",
    "[2606:4700::200:5efe:a9fe:a9fe]",
]

NOT_PUBLIC = [
    *("localhost", "LOCALHOST.", "a.localhost", "ip6-localhost", "localhost.localdomain"),
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "0x7f.1"),
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "169.254.0.1"),
    *("172.16.3.4", "172.31.255.255", "192.0.0.1", "192.0.0.9", "192.0.0.170", "192.0.2.1"),
    *("192.31.196.1", "192.52.193.1", "192.88.99.1", "192.168.1.1", "192.175.48.1"),
    *("198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("[::]", "[::1]", "[::127.0.0.1]", "[::808:808]", "[::ffff:127.0.0.1]", "[::ffff:0:a00:1]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]", "[64:ff9b:1:a00:0:100:808:808]"),
    *("[100::1]", "[100:0:0:1::1]", "[200::1]", "[400::1]", "[1000::1]", "[1fff::1]"),
    *("[2001::1]", "[2001:0:0:0:0:0:80ff:fffe]", "[2001:0:7f00:1::]", "[2001:2::1]"),
    *("[2001:10::1]", "[2001:20::1]", "[2001:30::1]", "[2001:1ff::1]", "[2001:db8::1]"),
    *("[2002:7f00:1::]", "[2002:808:808::1]", "[2620:4f:8000::1]", "[2606:4700::5efe:a00:1]"),
    *("[3fff::1]", "[3fff:fff::1]", "[4000::1]", "[5f00::1]", "[8000::1]", "[f000::1]"),
    *("[fc00::1]", "[fd12:3456::1]", "[fe80::1]", "[fe80::1%25eth0]", "[fec0::1]", "[ff02::1]"),
]

PUBLIC = [
    *("example.com", "hooks.example.com.", "1.2.3.4.example.com", "8.8.8.8", "100.63.255.255"),
    *("100.128.0.1", "172.32.0.1", "192.0.1.1", "198.17.1.1", "223.255.255.255", "168.63.129.17"),
    *("[2606:4700::1111]", "[2001:4860:4860::8888]", "[2a00:1450:4001::1]", "[2001:200::1]"),
    *("[::ffff:8.8.8.8]", "[64:ff9b::808:808]", "[2606:4700::5efe:808:808]"),
]


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as made:
        yield made


def work(state: Log) -> Log:
    return {"log": ["worked"]}


@pytest.mark.parametrize("host", [*NOT_PUBLIC, *METADATA, *METADATA_IN_DISGUISE])
def test_an_address_that_is_not_public_is_refused(host: str) -> None:
    with pytest.raises(BadArgument, match=r"is not public\."):
        perdure.Webhook(f"https://{host}/hook")


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_address_is_accepted(host: str) -> None:
    perdure.Webhook(f"https://{host}/hook")


@pytest.mark.parametrize("host", [*METADATA, *METADATA_IN_DISGUISE])
def test_allowing_private_addresses_does_not_allow_metadata_services(host: str) -> None:
    with pytest.raises(BadArgument, match="metadata services of clouds"):
        perdure.Webhook(f"http://{host}/latest", allow_private=True)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "10.0.0.1", "[fd12::1]", "[::1]"])
def test_private_addresses_can_be_allowed(host: str) -> None:
    perdure.Webhook(f"http://{host}/hook", allow_private=True)


def test_a_list_of_networks_allows_only_those_and_metadata_only_by_name() -> None:
    allowed: Any = ["10.0.0.0/8", "169.254.169.254", "fd12::/16"]
    for host in ("10.9.9.9", "169.254.169.254", "[fd12::1]", "[::ffff:10.1.1.1]", "8.8.8.8"):
        perdure.Webhook(f"http://{host}/hook", allow_private=allowed)
    for host in ("127.0.0.1", "192.168.1.1", "100.100.100.200", "[fd13::1]", "[fd00:ec2::254]"):
        with pytest.raises(BadArgument, match="not public"):
            perdure.Webhook(f"http://{host}/hook", allow_private=allowed)
    for wrong in ("10.0.0.0/8", ["10.0.0.1/8"], ["intranet"], [""]):
        with pytest.raises(BadArgument, match="a list of networks"):
            perdure.RunWebhooks(allow_private=wrong)


async def test_a_run_with_such_a_webhook_is_refused_and_nothing_is_stored(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(work), name="work")
        for host in ("192.0.0.192", "[64:ff9b:1:a00:0:100:808:808]"):
            with pytest.raises(BadArgument, match="not public"):
                await rt.start("work", {"log": []}, webhook=f"https://{host}/")
        assert await rt.runs() == []


def test_a_client_over_http_is_refused(sqlite_url: str) -> None:
    own = perdure.RunWebhooks(allow_private=True)
    with perdure.Runtime(sqlite_url, run_webhooks=own) as rt:
        rt.register(chain(work), name="work")
        with served(rt) as server, httpx.Client(base_url=server.url) as http:
            hook = "http://168.63.129.16/"
            body = {"assistant_id": "work", "input": {}, "webhook": hook, "schedule": "* * * * *"}
            for path in ("/runs", "/runs/crons"):
                answer = http.post(path, json=body)
                assert answer.status_code == 422, answer.text
                assert "metadata" in answer.json()["detail"]


class Resolver:
    """What names resolve to in this process, one answer after the other; the last one stays.

    Connections to other machines are refused meanwhile: a test that fails must not call one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self.resolve)
        connect = socket.socket.connect

        def connect_here(this: socket.socket, address: Any) -> None:
            if address[0] not in ("127.0.0.1", "127.0.0.99", "::1"):
                raise ConnectionRefusedError
            connect(this, address)

        monkeypatch.setattr(socket.socket, "connect", connect_here)

    def resolve(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        families = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
        return [
            (family, socket.SOCK_STREAM, 6, "", (one, port))
            for family, one in zip(families, found, strict=True)
        ]


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%2"],
        ["64:ff9b:1::808:808"],
        ["192.0.0.192"],
    ],
    ids=" ".join,
)
async def test_a_name_is_judged_by_what_it_resolves_to(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(work), name="work")
        await rt.start("work", {"log": []}, webhook="https://hooks.example/")
        resolver = Resolver(monkeypatch, addresses)
        await rt.tick()
        [message] = await rt.messages()
        assert message.error is not None
        assert "not a public address" in message.error
        assert message.due_at is None  # it is not tried again
        assert resolver.asked == ["hooks.example"]


async def test_a_name_of_a_metadata_service_is_not_called_although_private_addresses_are_allowed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = perdure.RunWebhooks(allow_private=True)
    async with opened(sqlite_url, run_webhooks=own) as rt:
        rt.register(chain(work), name="work")
        await rt.start("work", {"log": []}, webhook="http://metadata.google.internal/")
        Resolver(monkeypatch, ["169.254.169.254"])
        await rt.tick()
        [message] = await rt.messages()
        assert message.error is not None
        assert "not a public address" in message.error


async def test_a_name_is_resolved_once_and_the_checked_address_is_called(
    sqlite_url: str, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No window for DNS rebinding: the second answer of the resolver would be another address. No
    proxy of the environment resolves it either."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    port = receiver.url.rpartition(":")[2]
    own = perdure.RunWebhooks(allow_private=["127.0.0.1/32"])
    async with opened(sqlite_url, run_webhooks=own) as rt:
        rt.register(chain(work), name="work")
        await rt.start("work", {"log": []}, webhook=f"http://hooks.example:{port}/a")
        resolver = Resolver(monkeypatch, ["127.0.0.1"], ["127.0.0.99"])
        await rt.tick()
        assert resolver.asked == ["hooks.example"]
        [got] = receiver.got
        assert got.headers["host"] == f"hooks.example:{port}"
        assert await rt.messages() == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(
    sqlite_url: str, receiver: WebhookReceiver, status: int
) -> None:
    receiver.answers, receiver.headers = [status], {"location": f"{receiver.url}/elsewhere"}
    own = perdure.RunWebhooks(allow_private=["127.0.0.0/8"])
    async with opened(sqlite_url, run_webhooks=own) as rt:
        rt.register(chain(work), name="work")
        await rt.start("work", {"log": []}, webhook=f"{receiver.url}/a")
        await rt.tick()
        assert [one.path for one in receiver.got] == ["/a"]
        [message] = await rt.messages()
        assert message.error is not None
        assert "redirect" in message.error
