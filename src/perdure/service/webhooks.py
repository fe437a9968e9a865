"""Webhooks: the endpoints of a runtime, and which URLs a webhook may have.

Anyone who may start a run chooses the URL, and the request is sent from inside the network. So only
public addresses are allowed (`public_addresses.py`): `check_url` checks the URL itself, and
`notifications/posting.py`, when it connects, the address that the host name resolves to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from perdure.errors import BadArgument
from perdure.operations.messages import Endpoint, topic_of_endpoint, topic_of_host
from perdure.service.public_addresses import Private, as_address, check_networks, is_allowed
from perdure.types import State

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
_METADATA = "The metadata services of clouds are called only if allow_private names them."
_SWITCHES = {"": False, "0": False, "false": False, "1": True, "true": True, "yes": True}
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


@dataclass(frozen=True)
class Webhook:
    """An endpoint that is notified of questions and runs: `Runtime(webhooks=[Webhook(…)])`.

    Requests follow the Standard Webhooks specification. They are delivered at least once, and
    repeated for days.

    Raises:
        BadArgument: The URL, a secret, an event, a network or the name is invalid.
    """

    url: str
    """Where requests are sent: an `https` URL with a public address."""
    secret: str | Sequence[str] = ()
    """Signs each request: `whsec_` and the base64 of 24 to 64 random bytes. Several during a
    rotation. Without one, requests are not signed."""
    events: Sequence[str] = (QUESTION_WAITING, "run.held", "run.failed")
    """What it is notified of: some of `question.waiting`, `run.held`, `run.failed`, `run.done`."""
    name: str = ""
    """Name of the endpoint, at most 64 characters. Default: derived from the URL. Set it if you
    want to change the URL while messages are waiting."""
    allow_private: bool | Sequence[str] = False
    """Allow `http`, and addresses that are not public: True, or a list of networks, such as
    `["10.0.0.0/8"]`. The metadata services of clouds are refused unless a list names them."""

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
        return Endpoint(topic_of_endpoint(name), name, states_of(self.events), questions=asks)


@dataclass(frozen=True)
class RunWebhooks:
    """How the webhooks of single runs are sent: `start(webhook=url)`.

    Raises:
        BadArgument: A secret or a network is invalid.
    """

    secret: str | Sequence[str] = ()
    """Signs each request, as in `Webhook`. Without one, requests are not signed."""
    allow_private: bool | Sequence[str] = False
    """Allow `http`, and addresses that are not public: True, or a list of networks, such as
    `["10.0.0.0/8"]`. The metadata services of clouds are refused unless a list names them."""

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
    told = [Webhook(url, secrets, name="environment", allow_private=private)] if url else []
    return told, RunWebhooks(secrets, allow_private=private)


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


def secrets_of(given: str | Sequence[str]) -> list[bytes]:
    """The keys of Standard Webhooks secrets. Raises `BadArgument`."""
    found = []
    for secret in [given] if isinstance(given, str) else given:
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not 24 <= len(key) <= 64:  # required by the standard
            raise BadArgument(
                "A webhook secret is whsec_ and the base64 of 24 to 64 random bytes. Make one "
                "with: echo whsec_$(openssl rand -base64 32)."
            )
        found.append(key)
    return found


def topic_of_url(url: str, *, allow_private: Private) -> str:
    """The topic of the messages for a run's own webhook. Raises `BadArgument`."""
    return topic_of_host(check_url(url, allow_private=allow_private))


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
        hint = _METADATA if allow_private is True else _PRIVATE
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
