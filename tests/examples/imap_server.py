"""A real IMAP server on this machine, with one mailbox: pymap, in a thread of its own.

What a person does with it goes over IMAP, too: `deliver` appends, `state` looks. It can be taken
down and brought up again, on the same port and with the same mails.
"""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import socket
import ssl
import threading
from argparse import Namespace
from collections.abc import Coroutine, Iterator
from datetime import datetime
from email.message import EmailMessage
from typing import Any

from proxyprotocol.sock import SocketInfoLocal
from pymap.backend.dict import DictBackend
from pymap.imap import IMAPServer
from pysasl.hashing import BuiltinHash

HOST = "127.0.0.1"
USER, PASSWORD = "ana@example.com", "s3cret ü"


class MailServer:
    """The server, for as long as a `with` block runs. With `tls` it encrypts from the start."""

    port = 0

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="imap", daemon=True)
        self._talks: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    def __enter__(self) -> MailServer:
        self._thread.start()
        self._do(self._begin())
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _begin(self) -> None:
        options = Namespace(
            **dict.fromkeys(("passlib_cfg", "proxy_protocol", "cert", "key", "host", "port")),
            **dict.fromkeys(("debug", "tls", "demo_data"), False),
            demo_user=USER,
            demo_password=PASSWORD,
        )
        backend, config = await DictBackend.init(
            options, hash_context=BuiltinHash(rounds=1), invalid_user_sleep=0.0
        )
        self._imap = IMAPServer(backend.login, config)

    # -- going away and coming back

    def up(self) -> None:
        self._do(self._up())

    async def _up(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def down(self) -> None:
        """Refuse connections, and cut those off that there are."""
        self._do(self._down())

    async def _down(self) -> None:
        self._server.close()
        for writer in self._talks.values():
            writer.transport.abort()
        await asyncio.gather(*self._talks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks[talk] = writer
        with contextlib.suppress(ConnectionError):  # cut off
            await self._imap(reader, writer, SocketInfoLocal(writer))
        del self._talks[talk]

    # -- what a person does

    @contextlib.contextmanager
    def person(self, folder: str = "INBOX") -> Iterator[imaplib.IMAP4]:
        """Logged in, with a folder open to be changed."""
        client = imaplib.IMAP4(HOST, self.port, 30)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.authenticate("PLAIN", lambda _: f"\0{USER}\0{PASSWORD}".encode())
        client.select(folder)
        try:
            yield client
        finally:
            client.logout()

    def deliver(self, mail: EmailMessage | bytes, at: datetime, folder: str = "INBOX") -> None:
        """A mail comes in at this time."""
        content = mail if isinstance(mail, bytes) else mail.as_bytes()
        with self.person(folder) as client:
            assert client.append(folder, None, at, content)[0] == "OK"

    def state(self, folder: str = "INBOX") -> list[Any]:
        """Each mail with its UID and its flags, as a person sees them."""
        with self.person(folder) as client:
            return client.fetch("1:*", "(UID FLAGS)")[1]
