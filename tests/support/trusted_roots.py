"""The certificates that everybody trusts are read once per process, and not by each HTTP client.

Reading them takes 25 ms of a processor, for hundreds of clients that ask a server on loopback in
the clear. A test that trusts others names their file, and its clients read that one.
"""

from __future__ import annotations

import functools
import os
import ssl
from typing import Any

import httpx
import httpx._transports.default

_plain = httpx.create_ssl_context
_read = functools.cache(_plain)


def _create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if verify is not True or cert is not None or named:
        return _plain(verify, cert, trust_env)
    found: ssl.SSLContext = _read()
    return found


def read_once() -> None:
    """From now on, in this process and those that it forks."""
    transports: Any = httpx._transports.default
    transports.create_ssl_context = _create_ssl_context
