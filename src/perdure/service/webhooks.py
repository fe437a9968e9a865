"""Webhooks: the endpoints of a runtime, and which URLs a webhook may have.

A caller who may start a run chooses the URL, and the request is sent from inside the network. So
only public addresses are allowed: `check_url` refuses what the URL shows, and `is_public` is asked
again about the address that the host's name resolves to, when the connection is made.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from perdure.errors import BadArgument
from perdure.operations.messages import Endpoint, topic_of_endpoint, topic_of_host
from perdure.types import State

QUESTION_WAITING = "question.waiting"
EVENTS = {
    "run.held": State.HELD,
    "run.failed": State.FAILED,
    "run.done": State.DONE,
}
"""The events that endpoints can be told of besides `question.waiting`, by the state of the run."""
LONGEST_URL = 2048
SECRET_PREFIX = "whsec_"  # noqa: S105 (how secrets begin)
_NAT64 = [ipaddress.IPv6Network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48")]
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True)
class Webhook:
    """An endpoint that workers tell of questions and runs: `Runtime(webhooks=[Webhook(...)])`.

    `events` are among `question.waiting`, `run.held`, `run.failed` and `run.done`.
    `secret` signs each request: a `whsec_` secret, or several while one replaces another. `name` is
    in the topic of its messages, and by default made of the URL: give one to be able to change the
    URL while messages wait. `allow_private` allows `http`, and addresses that are not public.
    """

    url: str
    secret: str | Sequence[str] = ()
    events: Sequence[str] = (QUESTION_WAITING, "run.held", "run.failed")
    name: str = ""
    allow_private: bool = False

    def __post_init__(self) -> None:
        check_url(self.url, allow_private=self.allow_private)
        secrets_of(self.secret)
        known = (QUESTION_WAITING, *EVENTS)
        if isinstance(self.events, str) or not set(self.events) <= set(known):
            raise BadArgument(f"events={self.events!r}: use some of {', '.join(known)}.")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,64}", self.name):
            raise BadArgument(
                f"name={self.name!r}: the name of a webhook has up to 64 letters, digits, dots, "
                "dashes and underscores."
            )

    @property
    def endpoint(self) -> Endpoint:
        name = self.name or hashlib.sha256(self.url.encode()).hexdigest()[:12]
        states = tuple(EVENTS[event] for event in self.events if event in EVENTS)
        asks = QUESTION_WAITING in self.events
        return Endpoint(topic_of_endpoint(name), name, states, questions=asks)


@dataclass(frozen=True)
class RunWebhooks:
    """How the webhooks that runs are started with are signed, and which URLs they may have.

    `secret` and `allow_private` are those of `Webhook`. Without a secret they are not signed.
    """

    secret: str | Sequence[str] = ()
    allow_private: bool = False

    def __post_init__(self) -> None:
        secrets_of(self.secret)


def from_environment(environ: Mapping[str, str]) -> tuple[list[Webhook], RunWebhooks]:
    """The webhooks of a runtime whose program names none.

    `PERDURE_WEBHOOK_URL` is told of questions, and of runs that are held or failed.
    `PERDURE_WEBHOOK_SECRET`, or several with spaces between them, signs these and those of runs.
    `PERDURE_WEBHOOK_PRIVATE=1` allows private addresses.
    """
    secrets = environ.get("PERDURE_WEBHOOK_SECRET", "").split()
    private = environ.get("PERDURE_WEBHOOK_PRIVATE", "") not in ("", "0", "false")
    url = environ.get("PERDURE_WEBHOOK_URL")
    told = [Webhook(url, secrets, name="environment", allow_private=private)] if url else []
    return told, RunWebhooks(secrets, allow_private=private)


def secrets_of(given: str | Sequence[str]) -> list[bytes]:
    """The keys of secrets as Standard Webhooks writes them. Raises `BadArgument`."""
    found = []
    for secret in [given] if isinstance(given, str) else given:
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not 24 <= len(key) <= 64:  # as the standard says
            raise BadArgument(
                "A webhook secret is whsec_ and the base64 of 24 to 64 random bytes. Make one "
                "with: echo whsec_$(openssl rand -base64 32)."
            )
        found.append(key)
    return found


def topic_of_url(url: str, *, allow_private: bool) -> str:
    """The topic of the messages for a run's own webhook. Raises `BadArgument`."""
    return topic_of_host(check_url(url, allow_private=allow_private))


def check_url(url: Any, *, allow_private: bool) -> str:
    """The host of a webhook's URL. Raises `BadArgument` if it must not be called."""
    if not isinstance(url, str) or len(url) > LONGEST_URL:
        raise BadArgument(f"A webhook is a URL of up to {LONGEST_URL} characters.")
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise BadArgument(
            "The URL of a webhook has only printable ASCII characters: write others in Punycode "
            "or percent-encoded."
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadArgument(f"The webhook is not a URL: {error}.") from None
    if parts.scheme not in ("https", "http") or not host:
        raise BadArgument("A webhook is a URL that begins with https:// and names a host.")
    if parts.username is not None or parts.password is not None:
        raise BadArgument("The URL of a webhook has no user and no password.")
    if allow_private:
        return host
    if parts.scheme == "http":
        raise BadArgument("A webhook is called by https, unless private addresses are allowed.")
    name = host.rstrip(".")
    address = as_address(name)
    if name in _LOCAL_NAMES or name.endswith(".localhost") or (address and not is_public(address)):
        raise BadArgument(f"The webhook's host {host} is not public, and is not called.")
    return host


def as_address(host: str) -> str | None:
    """The IP address that a host is a spelling of: `127.1`, `2130706433`, `0x7f.0.0.1`, `::1`."""
    try:
        return str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError:
        pass
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also if it is wrapped in IPv6."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        wrapped = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if wrapped is None and any(found in network for network in _NAT64):
            wrapped = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if wrapped is not None:
            return is_public(str(wrapped))
        if int(found) < 1 << 32 or found.is_site_local:  # ::127.0.0.1, deprecated
            return False
    return found.is_global and not (
        found.is_multicast or found.is_reserved or found.is_unspecified or found.is_link_local
    )
