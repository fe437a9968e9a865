"""Which IP addresses a webhook may reach.

The lists are ours, because Python's `is_private` and `is_global` differ by patch release. They hold
IANA's special-purpose registries of IPv4 and IPv6, multicast, and the metadata services of clouds,
which give credentials to every caller. An IPv6 address that contains an IPv4 address may reach it
through a translator or a tunnel, so both are checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from perdure.errors import BadArgument
from perdure.types import State

Private = bool | Sequence[str]
"""Which addresses are allowed that are not public: none, all but metadata, or these networks."""

EVERYWHERE = ("0.0.0.0/0", "::/0")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(texts: str) -> tuple[_Network, ...]:
    return tuple(map(ipaddress.ip_network, texts.split()))


_METADATA = _networks(
    # Amazon, Google, Azure, Oracle, DigitalOcean and others; containers on Amazon
    "169.254.169.254 169.254.170.2 169.254.170.23 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 "
    # Alibaba, Azure, Oracle, Scaleway
    "100.100.100.200 168.63.129.16 192.0.0.192 169.254.42.42 fd00:42::42"
)

_SPECIAL_IPV4 = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)

_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 from which public addresses are assigned."""

_SPECIAL_IPV6 = _networks("2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20")
"""The exceptions in it: Teredo and other protocols, documentation, 6to4, AS112."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")

_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def as_address(host: str) -> str | None:
    """The IP address that a host is, in any notation: `127.1`, `2130706433`, `0x7f.0.0.1`."""
    try:
        return str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError:
        pass
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None


def check_networks(private: Private) -> None:
    """Refuse networks that are not written as such. Raises `BadArgument`."""
    if isinstance(private, bool):
        return
    try:
        if isinstance(private, str):
            raise ValueError(f"{private!r} is one text")
        for one in private:
            ipaddress.ip_network(one)
    except ValueError as error:
        raise BadArgument(
            f"allow_private must be True, or a list of networks such as 10.0.0.0/8: {error}."
        ) from None


def is_allowed(address: str, private: Private) -> bool:
    """Whether a webhook may go to an IP address. A metadata service must be named in `private`."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if _is_public(ip):
        return True
    if isinstance(private, bool):
        return private and not any(_is_in(one, _METADATA) for one in (ip, *_embedded(ip)))
    if isinstance(ip, ipaddress.IPv6Address) and ip in _MAPPED:
        ip = _low(ip)
    return _is_in(ip, tuple(map(ipaddress.ip_network, private)))


def _is_public(ip: _Address) -> bool:
    if isinstance(ip, ipaddress.IPv4Address):
        return not _is_in(ip, _SPECIAL_IPV4 + _METADATA)
    if ip in _MAPPED or ip in _NAT64:  # networks without IPv4 translate each public address
        return _is_public(_low(ip))
    if ip not in _UNICAST or _is_in(ip, _SPECIAL_IPV6):
        return False
    return all(map(_is_public, _embedded(ip)))


def _embedded(ip: _Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address may lead to."""
    if isinstance(ip, ipaddress.IPv4Address):
        return []
    bits = int(ip)
    inner: list[int] = []
    if ip in _MAPPED or ip in _NAT64 or bits < 1 << 32:
        inner = [bits]
    elif ip in _LOCAL_NAT64:  # RFC 6052: after 48, 56, 64 or 96 bits, around bits 64 to 71
        inner = [
            bits >> 48 & 0xFFFF0000 | bits >> 40 & 0xFFFF,
            bits >> 40 & 0xFF000000 | bits >> 32 & 0xFFFFFF,
            bits >> 24,
            bits,
        ]
    elif bits >> 112 == 0x2002:  # 6to4
        inner = [bits >> 80]
    elif bits >> 96 == 0x20010000:  # Teredo: the server, and the client with its bits inverted
        inner = [bits >> 64, ~bits]
    elif bits >> 32 & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        inner = [bits]
    return [ipaddress.IPv4Address(one & 0xFFFFFFFF) for one in inner]


def _low(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)


def _is_in(ip: _Address, networks: tuple[_Network, ...]) -> bool:
    return any(ip in network for network in networks)


WEBHOOK = "perdure.webhook"
"""Prefix of webhook topics: `.lane` for runs' own webhooks, `:name` for endpoints of a runtime."""

MAIL = "perdure.mail"
"""Prefix of mail topics: `:name` for the mail that a runtime sends under a name."""

LANES = 8
"""Number of topics that runs' own webhooks are spread over, by host, so that a slow receiver holds
back few others."""


class Endpoint(NamedTuple):
    """A topic that gets messages about runs in some states, and about new questions to people."""

    topic: str
    name: str
    states: tuple[State, ...]
    questions: bool


def lane_topic(lane: int) -> str:
    """The topic of a lane: the own webhooks of some runs."""
    return f"{WEBHOOK}.{lane}"


def topic_of_host(host: str) -> str:
    """The topic of runs' own webhooks to this host."""
    return lane_topic(zlib.crc32(host.lower().encode()) % LANES)


QUESTION_WAITING = "question.waiting"

EVENTS = {
    "run.held": State.HELD,
    "run.failed": State.FAILED,
    "run.done": State.DONE,
}
"""The events for endpoints besides `question.waiting`, by the state of the run."""

TOLERANCE = 300
"""Maximum difference in seconds between the request's time and ours."""

LONGEST_URL = 2048

SECRET_PREFIX = "whsec_"  # noqa: S105 (how secrets begin)

_PRIVATE = "A receiver in your own network needs allow_private=True, or PERDURE_WEBHOOK_PRIVATE=1."

_METADATA_HINT = "The metadata services of clouds are called only if allow_private names them."

_SWITCHES = {"": False, "0": False, "false": False, "1": True, "true": True, "yes": True}

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True)
class Webhook:
    """An endpoint that is notified of questions and runs: `Runtime(webhooks=[Webhook(…)])`.

    Requests follow the Standard Webhooks specification. They are delivered at least once, and
    repeated for days.

    Attributes:
        url: Where requests are sent: an `https` URL with a public address.
        secret: Signs each request: `whsec_` and the base64 of 24 to 64 random bytes. Several
            during a rotation. Without one, requests are not signed.
        events: What it is notified of: some of `question.waiting`, `run.held`, `run.failed`,
            `run.done`.
        name: Name of the endpoint, at most 64 characters. Default: derived from the URL. Set it
            if you want to change the URL while messages are waiting.
        allow_private: Allow `http`, and addresses that are not public: True, or a list of
            networks, such as `["10.0.0.0/8"]`. The metadata services of clouds are refused
            unless a list names them.

    Raises:
        BadArgument: The URL, a secret, an event, a network or the name is invalid.
    """

    url: str
    secret: str | Sequence[str] = ()
    events: Sequence[str] = (QUESTION_WAITING, "run.held", "run.failed")
    name: str = ""
    allow_private: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        check_networks(self.allow_private)
        check_url(self.url, allow_private=self.allow_private)
        secrets_of(self.secret)
        check_events(self.events)
        check_endpoint_name(self.name)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint, as the outbox knows it."""
        name = self.name or hashlib.sha256(self.url.encode()).hexdigest()[:12]
        asks = QUESTION_WAITING in self.events
        return Endpoint(f"{WEBHOOK}:{name}", name, states_of(self.events), questions=asks)


@dataclass(frozen=True)
class RunWebhooks:
    """How the webhooks of single runs are sent: `start(webhook=url)`.

    Attributes:
        secret: Signs each request, as in `Webhook`. Without one, requests are not signed.
        allow_private: Allow `http`, and addresses that are not public: True, or a list of
            networks, such as `["10.0.0.0/8"]`. The metadata services of clouds are refused
            unless a list names them.

    Raises:
        BadArgument: A secret or a network is invalid.
    """

    secret: str | Sequence[str] = ()
    allow_private: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        check_networks(self.allow_private)
        secrets_of(self.secret)


def from_environment(environ: Mapping[str, str]) -> tuple[list[Webhook], RunWebhooks]:
    """The webhooks of a runtime whose program sets none.

    `PERDURE_WEBHOOK_URL` is notified of questions, and of held and failed runs.
    `PERDURE_WEBHOOK_SECRET` signs these and runs' own webhooks; separate several with spaces.
    `PERDURE_WEBHOOK_PRIVATE=1` allows private addresses; networks, separated by commas or spaces,
    allow only theirs.
    """
    secrets = environ.get("PERDURE_WEBHOOK_SECRET", "").split()
    named = environ.get("PERDURE_WEBHOOK_PRIVATE", "").replace(",", " ").split()
    private: Private = named
    if len(named) < 2 and (word := "".join(named).lower()) in _SWITCHES:
        private = _SWITCHES[word]
    url = environ.get("PERDURE_WEBHOOK_URL")
    endpoints = [Webhook(url, secrets, name="environment", allow_private=private)] if url else []
    return endpoints, RunWebhooks(secrets, allow_private=private)


def check_events(events: Sequence[str]) -> None:
    """Refuse events that an endpoint cannot be notified of."""
    known = (QUESTION_WAITING, *EVENTS)
    if isinstance(events, str) or not set(events) <= set(known):
        raise BadArgument(f"events={events!r}: use some of {', '.join(known)}.")


def states_of(events: Sequence[str]) -> tuple[State, ...]:
    """The states of runs that these events are about."""
    return tuple(EVENTS[event] for event in events if event in EVENTS)


def check_endpoint_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", name):
        raise BadArgument(
            f"name={name!r}: the name of an endpoint must have at most 64 letters, digits, dots, "
            "dashes and underscores."
        )


def secrets_of(secrets: str | Sequence[str]) -> list[bytes]:
    """The keys of Standard Webhooks secrets. Raises `BadArgument`."""
    keys = []
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not 24 <= len(key) <= 64:  # required by the standard
            raise BadArgument(
                "A webhook secret is whsec_ and the base64 of 24 to 64 random bytes. Make one "
                "with: echo whsec_$(openssl rand -base64 32)."
            )
        keys.append(key)
    return keys


def check_url(url: Any, *, allow_private: Private) -> str:
    """The host of a webhook's URL. Raises `BadArgument` if it must not be called."""
    if not isinstance(url, str) or len(url) > LONGEST_URL:
        raise BadArgument(f"A webhook must be a URL of at most {LONGEST_URL} characters.")
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise BadArgument(
            "A webhook's URL must have only printable ASCII characters: write others in Punycode "
            "or percent-encoded."
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadArgument(f"The webhook is not a URL: {error}.") from None
    if parts.scheme not in ("https", "http") or not host:
        raise BadArgument("A webhook must be a URL that begins with https:// and names a host.")
    if not all(0 < len(label) <= 63 for label in host.removesuffix(".").split(".")):
        raise BadArgument("Each part of a webhook's host name must have 1 to 63 characters.")
    if parts.username is not None or parts.password is not None:
        raise BadArgument("A webhook's URL must not have a user or a password.")
    if parts.scheme == "http" and not allow_private:
        raise BadArgument(f"A webhook's URL must use https. {_PRIVATE}")
    name = host.rstrip(".")
    address = as_address(name)
    is_local = name in _LOCAL_NAMES or name.endswith(".localhost")
    if (is_local and not allow_private) or (address and not is_allowed(address, allow_private)):
        hint = _METADATA_HINT if allow_private is True else _PRIVATE
        raise BadArgument(f"The webhook's host {host} is not public. {hint}")
    return host


class BadSignature(Exception):
    """A request with an invalid signature. The message says why, without a secret."""


def sign(keys: Iterable[bytes], id: str, at: int, body: bytes) -> dict[str, str]:
    """The Standard Webhooks headers of a request: `v1,` and the base64 of an HMAC-SHA256 over id,
    time and body. `at` is a Unix time in seconds. There are several signatures during a rotation of
    secrets; one that matches is enough."""
    headers = {"webhook-id": id, "webhook-timestamp": str(at)}
    if signatures := [_signature(key, id, str(at), body) for key in keys]:
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def check_headers(headers: Mapping[str, str], now: float) -> None:
    """Raise `BadSignature` for what needs no body to be refused: no signature, or an old one."""
    id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    sent = headers.get("webhook-signature", "")
    if not id or not at or not sent:
        raise BadSignature(
            "Sign the request: webhook-id, webhook-timestamp and webhook-signature are needed."
        )
    if not at.isascii() or not at.isdigit() or len(at) > 12:
        raise BadSignature("webhook-timestamp is not a number of seconds.")
    if abs(now - int(at)) > TOLERANCE:
        raise BadSignature(f"webhook-timestamp is more than {TOLERANCE} seconds from now.")


def verify(keys: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The id of a request that one of these keys signed. Raises `BadSignature`."""
    check_headers(headers, now)
    id, at, sent = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    expected = [_signature(key, id, at, body).encode() for key in keys]
    received = [one.encode("utf-8", "replace") for one in sent.split(" ")]
    if not any(hmac.compare_digest(one, other) for one in expected for other in received):
        raise BadSignature("No signature in webhook-signature matches. Check the secret.")
    return id


def _signature(key: bytes, id: str, at: str, body: bytes) -> str:
    signed = f"{id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
