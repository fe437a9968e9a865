"""The application's settings, from the environment. The demo needs none of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .contacts import normalise

SECURITY = ("none", "starttls", "tls")


@dataclass(frozen=True)
class Settings:
    """Each field is `CAMPAIGN_` and its name in the environment; `url` is `PERDURE_URL` too."""

    url: str = "sqlite:///campaign.db"
    """The journal, and the application's tables."""
    smtp_host: str = "127.0.0.1"
    smtp_port: int = 25
    smtp_security: str = "none"
    """`starttls`, as on port 587, or `tls`, as on port 465."""
    smtp_user: str = ""
    smtp_password: str = field(default="", repr=False)
    smtp_timeout: float = 30.0
    """Seconds for each answer of the server."""
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
    """Public URL of the web server of `service.py`. With it, mails have a one-click unsubscribe
    link."""
    inbound_host: str = "127.0.0.1"
    inbound_port: int = 8024
    imap_host: str = ""
    """Where `inbound --imap` reads replies, over TLS."""
    imap_port: int = 993
    imap_user: str = ""
    imap_password: str = field(default="", repr=False)
    zone: str = "UTC"
    """For contacts whose line has none."""

    def __post_init__(self) -> None:
        normalise(self.unsubscribe)
        if self.smtp_security not in SECURITY:
            raise ValueError(f"CAMPAIGN_SMTP_SECURITY is one of {', '.join(SECURITY)}.")
        if self.web_url and not self.web_url.startswith(("https://", "http://")):
            raise ValueError("CAMPAIGN_WEB_URL is the start of a link: https://mail.example.com.")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        values: dict[str, Any] = {}
        if "PERDURE_URL" in environment:
            values["url"] = environment["PERDURE_URL"]
        for one in fields(cls):
            name = f"CAMPAIGN_{one.name.upper()}"
            kind: Any = type(one.default)
            if name in environment:
                try:
                    values[one.name] = kind(environment[name])
                except ValueError:
                    raise ValueError(f"{name}={environment[name]!r} is not a number.") from None
        return cls(**values)
