"""Ask the provider whether it accepted a mail that it did not acknowledge."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import quote

import httpx


class LookupFailed(Exception):
    """The provider could not say whether it has a mail."""


@dataclass(frozen=True)
class Lookup:
    """A provider that can be asked for a mail by its Message-ID, over HTTP.

    It answers with JSON that names the `message_id` it was asked for, 200 if it accepted that mail
    and 404 if not. A 404 that does not name it, from a wrong address or a proxy, does not count.
    """

    url: str
    """With `{message_id}` in it."""
    timeout: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    trust_env: bool = False
    """Whether to go through the proxy that the environment names."""

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def accepted(self, message_id: str) -> bool:
        """Whether the provider accepted a mail. Raises `LookupFailed` if it cannot say."""
        url = self.url.replace("{message_id}", quote(message_id, safe=""))
        try:
            response = httpx.get(
                url,
                headers=dict(self.headers),
                timeout=self.timeout,
                trust_env=self.trust_env,
                verify=self._tls if url.startswith("https:") else False,
            )
            named = response.status_code in (200, 404) and response.json()["message_id"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise LookupFailed(f"{url}: {type(error).__name__}: {error}") from error
        if named != message_id:
            raise LookupFailed(f"{url}: {response.status_code} says nothing about the mail")
        return response.status_code == 200
