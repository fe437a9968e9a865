"""The application's settings, from the environment. The demo needs none of them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .sheet import normalise

TOKEN = 20
"""Letters of the token in a contact's unsubscribe address and link."""


@dataclass(frozen=True)
class Settings:
    """Each field is `CAMPAIGN_` and its name in the environment; `url` is `PERDURE_URL` too."""

    url: str = "sqlite:///campaign.db"
    """The journal, and the application's tables."""
    smtp_host: str = "127.0.0.1"
    smtp_port: int = 25
    smtp_starttls: bool = False
    """Encrypt with STARTTLS, as on port 587."""
    smtp_tls: bool = False
    """Encrypt from the start, as on port 465."""
    smtp_user: str = ""
    smtp_password: str = field(default="", repr=False)
    smtp_timeout: float = 30.0
    lookup_url: str = ""
    """URL, with `{message_id}` in it, that says whether the provider accepted a mail. Without it, a
    mail with no answer is held for a person."""
    lookup_after: float = 60.0
    """Seconds after which a mail unknown to the provider counts as not accepted; longer than
    `smtp_timeout`."""
    model: str = ""
    """A chat model by its LangChain name, `openai:gpt-5`; by default a scripted one."""
    unsubscribe: str = "unsubscribe@example.com"
    """Mail to this address, or to `unsubscribe+TOKEN@` of the same domain, unsubscribes."""
    web_url: str = ""
    """Public URL of the web server of `service.py`, such as `https://mail.example.com`. With it,
    mails have a one-click unsubscribe link."""
    inbound_host: str = "127.0.0.1"
    inbound_port: int = 8024
    imap_host: str = ""
    """Where `inbound --imap` reads replies."""
    imap_port: int = 993
    imap_tls: bool = True
    """Encrypt from the start, as on port 993. Without it, the password can be read on the way."""
    imap_user: str = ""
    imap_password: str = field(default="", repr=False)
    imap_folder: str = "INBOX"
    zone: str = "UTC"
    """For contacts whose line has none, and for the days that `per_day` counts."""
    apart: int = 3
    """Days between two mails to one person from different campaigns; 0: no limit."""
    domain_pause: float = 0.0
    """Seconds between the beginnings of two mails to one domain; 0: none."""

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        given: dict[str, Any] = {}
        for one in fields(cls):
            text = environment.get(f"CAMPAIGN_{one.name.upper()}")
            if one.name == "url":
                text = text or environment.get("PERDURE_URL")
            if text is None:
                continue
            kind: type[Any] = type(one.default)
            try:
                given[one.name] = _yes_or_no(text) if kind is bool else _read(kind, text)
            except ValueError:
                name = f"CAMPAIGN_{one.name.upper()}"
                raise SystemExit(f"{name}={text!r} is not {_WANTED[kind]}.") from None
            if one.name in _CHECKS:
                try:
                    given[one.name] = _CHECKS[one.name](text)
                except ValueError as error:
                    raise SystemExit(f"CAMPAIGN_{one.name.upper()}={text!r}: {error}.") from None
        if given.get("smtp_starttls") and given.get("smtp_tls"):
            raise SystemExit(
                "CAMPAIGN_SMTP_TLS and CAMPAIGN_SMTP_STARTTLS are both set. Remove one: a server "
                "encrypts from the start, as on port 465, or with STARTTLS, as on port 587."
            )
        return cls(**given)


_WANTED = {bool: "yes or no", int: "a whole number, 0 or more", float: "a number, 0 or more"}


def _read(kind: type[Any], text: str) -> Any:
    value = kind(text)
    if kind is not str and not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _unsubscribe(text: str) -> str:
    """An address that has room for a contact's token."""
    address = normalise(text)
    normalise(address.replace("@", f"+{'0' * TOKEN}@"))
    return address


def _web_url(text: str) -> str:
    if text and not (text.isascii() and len(text) <= 250 and _WEB_URL.fullmatch(text)):
        raise ValueError("it is not the start of a link, such as https://mail.example.com")
    return text


_WEB_URL = re.compile(r'https?://[^\s<>,"/?#]+(/[^\s<>,"?#]*)?')
_CHECKS = {"unsubscribe": _unsubscribe, "web_url": _web_url}
"""What would fail every mail, or be a wrong way out in it."""
