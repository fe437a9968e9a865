"""What the application is told by its environment. Nothing here has to be set for the demo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


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
    """Where the provider tells whether it took a mail, with `{message_id}` in it. Without one, a
    mail that was not answered is held for a person."""
    lookup_after: float = 60.0
    """Seconds after which a mail the provider does not know of is known not to have arrived; longer
    than `smtp_timeout`."""
    model: str = ""
    """A chat model as LangChain names it, `openai:gpt-5`; by default a scripted one."""
    unsubscribe: str = "unsubscribe@example.com"
    """Mail to this address, or to `unsubscribe+TOKEN@` of the same domain, unsubscribes."""
    web_url: str = ""
    """Where the web server of `service.py` is reached from outside, such as
    `https://mail.example.com`: then mails have a link to unsubscribe with one click."""
    inbound_host: str = "127.0.0.1"
    inbound_port: int = 8024
    imap_host: str = ""
    """Where `inbound --imap` reads the replies, instead of having them handed over."""
    imap_port: int = 993
    imap_tls: bool = True
    """Encrypt from the start, as on port 993. Without, the password can be read on the way."""
    imap_user: str = ""
    imap_password: str = field(default="", repr=False)
    imap_folder: str = "INBOX"
    zone: str = "UTC"
    """For contacts whose line names none, and for the days that `per_day` counts."""
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
                given[one.name] = _yes_or_no(text) if kind is bool else kind(text)
            except ValueError:
                name = f"CAMPAIGN_{one.name.upper()}"
                raise SystemExit(f"{name}={text!r} is not {_WANTED[kind]}.") from None
        if given.get("smtp_starttls") and given.get("smtp_tls"):
            raise SystemExit(
                "CAMPAIGN_SMTP_TLS and CAMPAIGN_SMTP_STARTTLS are both set. Remove one: a server "
                "encrypts from the start, as on port 465, or with STARTTLS, as on port 587."
            )
        return cls(**given)


_WANTED = {bool: "yes or no", int: "a whole number", float: "a number"}


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(text)
