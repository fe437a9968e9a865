"""The public address of the pages, for links in mail, chat and webhooks.

Workers that send mail do not serve the pages, so the address is configured: `public_url=`, or
`PERDURE_PUBLIC_URL`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from perdure.errors import BadArgument

VARIABLE = "PERDURE_PUBLIC_URL"
LONGEST = 1000
MISSING = (
    "perdure does not know where people reach its pages. Pass public_url=, or set "
    f"{VARIABLE}, such as https://agents.example.com."
)


@dataclass(frozen=True)
class PublicUrl:
    """The address of a server with pages, including the prefix its routes are mounted under."""

    base: str

    @classmethod
    def of(cls, given: Any) -> PublicUrl | None:
        """The given address, or that of the environment. Raises `BadArgument`."""
        found = os.environ.get(VARIABLE) if given is None else given
        return cls(check_public_url(found)) if found else None

    def link(self, token: str) -> str:
        """The address of a signed link. The token is in the query, which access logs leave out."""
        return f"{self.base}/ui/link?t={quote(token, safe='')}"

    def question(self, wait_id: str) -> str:
        """The page of a question, for people who can sign in."""
        return f"{self.base}/ui/questions/{quote(wait_id, safe='')}"

    def run(self, run_id: str) -> str:
        """The page of a run, for people who can sign in."""
        return f"{self.base}/ui/runs/{quote(run_id, safe='')}"


def check_public_url(given: Any) -> str:
    """The address without a slash at its end. Raises `BadArgument`."""
    wrong = BadArgument(
        f"public_url must be the address that people reach perdure at, such as "
        f"https://agents.example.com, without a query, not {given!r}."
    )
    if not isinstance(given, str) or len(given) > LONGEST or not given.isascii():
        raise wrong
    if re.search(r"[\x00-\x20\x7f\\\"<>?#]", given):
        raise wrong
    try:
        parts = urlsplit(given)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("https", "http") or not host or parts.username is not None:
        raise wrong
    return given.rstrip("/")
