"""One POST to a webhook: only to public addresses, without redirects, with a timeout.

The host name is resolved once, and the connection goes to the address that was checked, so a name
that later resolves to another address changes nothing. The Host header and the certificate are
those of the name. Proxy settings of the environment are ignored, because a proxy would resolve the
name itself. Only the status of the response is read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from typing import Any

import httpcore
import httpx

from perdure.commands.webhooks import Private, is_allowed
from perdure.execution.duties import Undelivered

TIMEOUT = 20.0
"""Seconds that a delivery may take in total."""
CONNECT_TIMEOUT = 10.0

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host. Raises `OSError`."""


class Forbidden(Exception):
    """A host whose address is not allowed."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, from the system's resolver."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


class CheckedConnections(httpcore.AnyIOBackend):
    """Connects only to addresses that were checked."""

    def __init__(self, resolve: Resolve, *, allow_private: Private) -> None:
        self._resolve, self._allow_private = resolve, allow_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not all(is_allowed(address, self._allow_private) for address in addresses):
            raise Forbidden
        failed: Exception = httpcore.ConnectError("the host has no address")
        for address in addresses:
            try:
                return await super().connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


@cache
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # takes some milliseconds


async def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    allow_private: Private = False,
    resolve: Resolve = resolve,
) -> None:
    """Send a request. Raises `Undelivered` unless the response is 2xx.

    The error names only the host, because the rest of a URL may be secret.
    """
    host = httpcore.URL(url).host.decode()
    backend = CheckedConnections(resolve, allow_private=allow_private)
    times = {"connect": CONNECT_TIMEOUT, "read": TIMEOUT, "write": TIMEOUT, "pool": TIMEOUT}
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            httpcore.AsyncConnectionPool(_ssl_context(), network_backend=backend) as pool,
            pool.stream(
                "POST",
                url,
                headers=list(headers.items()),
                content=body,
                extensions={"timeout": times},
            ) as response,
        ):
            status = response.status
    except Forbidden:
        raise Undelivered(f"{host} is not a public address", final=True) from None
    except (TimeoutError, httpcore.TimeoutException):
        raise Undelivered(f"{host} gave no answer within {TIMEOUT:g} s") from None
    except OSError as error:
        raise Undelivered(f"{host} was not found: {error.strerror}") from None
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise Undelivered(f"{host} was not reached: {type(error).__name__}") from None
    if not 200 <= status < 300:
        moved = ", a redirect, which is not followed" if 300 <= status < 400 else ""
        gone = ": it is gone, and is not tried again" if status == 410 else ""
        raise Undelivered(f"{host} answered {status}{moved}{gone}", final=status == 410)
