"""An SMTP server on loopback that records the mail it receives and replies as configured."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import re
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any, NamedTuple

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


class Taken(NamedTuple):
    """A mail whose content the server received, whatever it replied."""

    sender: str
    to: list[str]
    content: bytes
    is_encrypted: bool

    @property
    def message(self) -> EmailMessage:
        found = email.message_from_bytes(self.content, policy=email.policy.default)
        assert isinstance(found, EmailMessage)
        return found

    @property
    def id(self) -> str:
        return str(self.message["Message-ID"])

    def part(self, subtype: str) -> str:
        """The text of a part: `plain` or `html`."""
        body = self.message.get_body((subtype,))
        assert body is not None
        return str(body.get_content())

    @property
    def url(self) -> str:
        """The link of the mail."""
        [found] = re.findall(r"https?://\S+", self.part("plain"))
        return str(found)


class MailServer:
    """The received mail, and the replies to the next."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of aiosmtpd's `SMTP`."""
        self.got: list[Taken] = []
        self.answers: list[str] = []
        """Replies to the next contents; then 250."""
        self.refused: dict[str, str] = {}
        """Replies to recipients."""
        self.logins: list[tuple[str, str]] = []
        self.password = "secret"
        self.may_answer = threading.Event()
        """Replies to contents wait until it is set."""
        self.may_answer.set()
        self.port = 0
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen: again at the same port, if it was stopped."""
        self._call(self._listen())

    def stop(self) -> None:
        self._call(self._close())

    def end(self) -> None:
        self.may_answer.set()
        self.stop()
        self._call(self._end_connections())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        made = lambda: SMTP(  # noqa: E731
            self, hostname="mail.test", loop=self._loop, authenticator=self._login, **self._options
        )
        context = self._options.get("tls_context")
        implicit = None if "require_starttls" in self._options else context
        self._server = await self._loop.create_server(made, "127.0.0.1", self.port, ssl=implicit)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _end_connections(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def _login(
        self, server: Any, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        login, password = data.login.decode(), data.password.decode()
        self.logins.append((login, password))
        return AuthResult(success=password == self.password, handled=False)

    async def handle_RCPT(  # noqa: N802 (aiosmtpd's name)
        self, server: Any, session: Session, envelope: Envelope, address: str, options: Any
    ) -> str:
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 (aiosmtpd's name)
        self, server: Any, session: Session, envelope: Envelope
    ) -> str:
        content = envelope.original_content or b""
        encrypted = session.ssl is not None or isinstance(
            server.transport.get_extra_info("ssl_object"), ssl.SSLObject
        )
        to = [str(one) for one in envelope.rcpt_tos]
        self.got.append(Taken(str(envelope.mail_from), to, content, encrypted))
        answer = self.answers.pop(0) if self.answers else "250 taken"
        await asyncio.to_thread(self.may_answer.wait, 60)
        return answer


@contextlib.contextmanager
def receiving_mail(**options: Any) -> Iterator[MailServer]:
    server = MailServer(**options)
    server.start()
    try:
        yield server
    finally:
        server.end()
