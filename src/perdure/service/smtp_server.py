"""An SMTP server given as a URL, and what may be sent to it unencrypted.

    smtps://user:password@mail.example.com           TLS from the first byte; port 465
    smtp://user:password@mail.example.com?starttls   TLS before anything is sent; port 587
    smtp://127.0.0.1:1025                            no TLS; port 25

Mail contains a link that decides, so connections to other machines use TLS, unless the URL says
`?plaintext`; then no password is ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote, urlsplit

from perdure.errors import BadArgument
from perdure.service.public_addresses import as_address

EXAMPLE = "smtp://user:password@mail.example.com:587?starttls"


class Encryption(StrEnum):
    """How a connection is encrypted."""

    TLS = "tls"
    STARTTLS = "starttls"
    NONE = "plaintext"


PORTS = {Encryption.TLS: 465, Encryption.STARTTLS: 587, Encryption.NONE: 25}


@dataclass(frozen=True)
class SmtpServer:
    """Where mail is handed over."""

    host: str
    port: int
    encryption: Encryption
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Host and port, for errors."""
        return f"{self.host}:{self.port}"

    @classmethod
    def of(cls, url: Any) -> SmtpServer:
        """The server that a URL names. Raises `BadArgument`, which does not repeat the URL: it may
        contain a password."""
        wrong = BadArgument(f"The mail server must be a URL such as {EXAMPLE}.")
        if not isinstance(url, str):
            raise wrong
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if parts.scheme not in ("smtp", "smtps") or not host or parts.path not in ("", "/"):
            raise wrong
        encryption = _encryption(parts.scheme, parts.query, host)
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else unquote(parts.password)
        if (user is None) != (password is None) or not f"{user}{password}".isascii():
            raise BadArgument("The mail server's URL needs a user and a password, both in ASCII.")
        if user is not None and encryption is Encryption.NONE and not _is_this_machine(host):
            raise BadArgument(
                f"The password for {host} would be sent unencrypted: use smtps://, or ?starttls."
            )
        return cls(host, port or PORTS[encryption], encryption, user, password)


def _encryption(scheme: str, query: str, host: str) -> Encryption:
    if query not in ("", Encryption.STARTTLS, Encryption.NONE) or (scheme == "smtps" and query):
        raise BadArgument(
            "The mail server's URL may end with ?starttls or ?plaintext; with smtps://, neither."
        )
    if scheme == "smtps":
        return Encryption.TLS
    if not query and not _is_this_machine(host):
        raise BadArgument(
            f"Mail to {host}, with links that answer questions, would be sent unencrypted: use "
            "smtps:// or ?starttls. In a network that you trust: ?plaintext."
        )
    return Encryption(query or Encryption.NONE)


def _is_this_machine(host: str) -> bool:
    address = as_address(host)
    return host == "localhost" if address is None else ip_address(address).is_loopback
