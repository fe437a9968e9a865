"""The receiver of the outbox's mail topic: builds each mail and hands it to the SMTP server.

The commit that stores a question also stores one message for each recipient. The content is read at
delivery. If the question is no longer open, its message is dropped.

    killed before the server's 250     sent by another worker after a minute
    killed after it, before the delete sent again with the same Message-ID
    connection lost before the reply   the same: the server may have accepted it
    refused for good (5xx)             given up; stays in the outbox with the server's code
    any other failure                  retried for three days, like a webhook
    an unknown recipient               the same: during a deploy another worker may have them

The SMTP conversation runs in a thread, with one time limit. Every attempt has the same Message-ID,
so that mail programs show a duplicate once. A process that was suspended for so long that another
worker may have sent the letter does not send it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import smtplib
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from functools import cache
from importlib.util import find_spec
from typing import Any

from perdure.commands import waits
from perdure.commands.connection import MISSING, PublicUrl
from perdure.commands.mail import Encryption, Mail, SmtpServer
from perdure.commands.question_links import make_link
from perdure.commands.waits import WaitRow
from perdure.errors import AnswerRefused, BadArgument, Error, NotFound, needs_extra
from perdure.execution.duties import HANDLER_TIME, Receiver, Undelivered
from perdure.execution.engine import Engine
from perdure.notifications.webhooks import ReportedRun, pause
from perdure.types import Message
from perdure.views.question_mail import MailText, question_mail, run_mail

SLOTS = 4
"""Maximum number of simultaneous connections from a worker to the mail server."""


class MailSender:
    """Sends the mail of a runtime."""

    def __init__(self, engine: Engine, mail: Mail, url: PublicUrl | None) -> None:
        if url is None:
            raise BadArgument(f"Mail contains a link, but {MISSING}")
        self._engine, self._mail, self._url = engine, mail, url
        self._server = SmtpServer.of(mail.server)

    def attach(self) -> None:
        """Let the engine's workers store and deliver mail."""
        if find_spec("itsdangerous") is None:
            raise Error(needs_extra("Runtime(mail=...)", "server"))
        endpoints = self._mail.endpoints.values()
        self._engine.outbox.endpoints += endpoints
        for topic in {one.topic for one in endpoints}:
            self._engine.outbox.own_receivers[topic] = Receiver(self._deliver, SLOTS, pause)

    async def _deliver(self, message: Message) -> None:
        begun, to = time.monotonic(), self._mail.recipient_of(message.id)
        if to is None:
            raise Undelivered("its recipient is not configured in this worker")
        about_run = message.payload is None
        text = await (self._of_run(message) if about_run else self._of_question(message, to))
        if text is None:
            return
        mail, sender = self._mail, self._mail.sender_address
        content = letter(message.id, mail.sender, to, text, datetime.now(UTC))
        await hand_over(self._server, mail.tls, sender, to, content, begun)

    async def _of_question(self, message: Message, to: str) -> MailText | None:
        """The mail about a question. None if it is no longer open."""
        engine, mail = self._engine, self._mail
        wait_id = str(message.payload["wait_id"])
        try:
            link, token = await engine.journal.arun(
                make_link(engine, wait_id, to, mail.link_expires)
            )
        except (AnswerRefused, NotFound):
            return None
        row: WaitRow | None = await engine.journal.ado(waits.find(wait_id))
        if row is None:  # deleted just now
            return None
        wait = waits.to_wait(engine.serializer, row)
        if wait.damaged:
            raise Undelivered(f"wait {wait_id} is damaged; its run asks again")
        url = self._url.link(token)
        return question_mail(wait, to, url, link.expires_at, content=mail.content)

    async def _of_run(self, message: Message) -> MailText:
        reported = await ReportedRun.read(self._engine, message)
        run, error = reported.row, reported.error or {}
        url, reason = self._url.run(run.id), error.get("message", "")
        return run_mail(run.graph, reported.event.kind, reason, url, content=self._mail.content)


POLICY = SMTP.clone(cte_type="7bit")
"""For servers that take ASCII only, too."""
TIMEOUT = HANDLER_TIME / 1000 * 2 / 3
"""Time limit of a delivery, in seconds. After `HANDLER_TIME` another worker may send it."""


def letter(id: str, sender: str, to: str, text: MailText, at: datetime) -> bytes:
    """A message with a plain text and an HTML part. `id` is that of the outbox's message."""
    name, address = parseaddr(sender)
    user, _, domain = address.rpartition("@")
    message = EmailMessage(policy=POLICY)
    message["From"] = Address(name, user, domain)
    message["To"] = Address(addr_spec=to)
    message["Subject"] = text.subject
    message["Date"] = format_datetime(at)
    message["Message-ID"] = f"<{id}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"  # no replies from holiday notices
    message.set_content(text.plain)
    message.add_alternative(text.html, subtype="html")
    return message.as_bytes()


async def hand_over(
    server: SmtpServer,
    tls: ssl.SSLContext | None,
    sender: str,
    to: str,
    content: bytes,
    begun: float | None = None,
) -> None:
    """Send a letter. `begun` is when its delivery began, by the monotonic clock; by default now.
    Raises `Undelivered`, which names neither content nor recipient."""
    now = time.monotonic()
    deadline = (now if begun is None else begun) + TIMEOUT
    conversation = Conversation(server, tls, deadline)
    try:
        async with asyncio.timeout(max(0.0, deadline - now)):
            await asyncio.to_thread(conversation.send, sender, to, content)
    except TimeoutError:
        raise Undelivered(f"{server.name} did not accept the mail within {TIMEOUT:g} s") from None
    finally:
        conversation.end()  # the thread too, if this was cancelled


class Conversation:
    """A connection to an SMTP server, and its current stage."""

    def __init__(self, server: SmtpServer, tls: ssl.SSLContext | None, deadline: float) -> None:
        self._server, self._tls, self._deadline = server, tls, deadline
        self.smtp: smtplib.SMTP | None = None
        """Set before it connects."""
        self._is_over = False
        self._stage = "the connection"

    def end(self) -> None:
        """Close the connection. A thread that waits for the server gets an error."""
        self._is_over = True
        sock = None if self.smtp is None else self.smtp.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def send(self, sender: str, to: str, content: bytes) -> None:
        """Hand a letter over; blocks. Raises `Undelivered`."""
        try:
            smtp = self._connect()
            steps: dict[str, Callable[[], tuple[int, bytes]]] = {
                "the sender": lambda: smtp.mail(sender),
                "the recipient": lambda: smtp.rcpt(to),
                "the content": lambda: smtp.data(content),
            }
            for self._stage, step in steps.items():
                code, text = step()
                if not 200 <= code < 300:
                    final = self._stage != "the sender" and 500 <= code < 600
                    raise self._refused(code, text, final=final)
            smtp.putcmd("QUIT")  # the reply is not awaited, so that the delivery is recorded soon
        except Undelivered:
            raise
        except smtplib.SMTPResponseException as error:  # STARTTLS, the login or DATA was refused
            raise self._refused(error.smtp_code, error.smtp_error) from None
        except ssl.SSLError as error:
            why = error.reason if error.reason else type(error).__name__
            message = f"{self._server.name}: no TLS connection at {self._stage}: {why}"
            raise Undelivered(message) from None
        except (OSError, ValueError) as error:  # also all of smtplib
            why = error.strerror if isinstance(error, OSError) and error.strerror else ""
            message = f"{self._server.name} failed at {self._stage}: {why or type(error).__name__}"
            raise Undelivered(message) from None
        finally:
            if self.smtp is not None:
                self.smtp.close()

    def _connect(self) -> smtplib.SMTP:
        """A connection that is encrypted and logged in, as the server's settings say."""
        server, trust = self._server, self._tls or ssl.create_default_context()
        where = (server.host, server.port, own_name())
        smtp: smtplib.SMTP
        if server.encryption is Encryption.TLS:
            smtp = _TlsConnection(self, *where, timeout=self.left(), context=trust)
        else:
            smtp = _Connection(self, *where, timeout=self.left())
        self._stage = "the greeting"
        smtp.ehlo_or_helo_if_needed()
        if server.encryption is Encryption.STARTTLS:
            self._stage = "STARTTLS"
            smtp.starttls(context=trust)  # raises if the server has none
            smtp.ehlo_or_helo_if_needed()
        if server.user is not None:
            self._stage = "the login"
            smtp.login(server.user, server.password or "")
        return smtp

    def _refused(self, code: int, text: bytes | str, *, final: bool = False) -> Undelivered:
        """Only the codes: the text may repeat the recipient."""
        message = text.decode("ascii", "replace") if isinstance(text, bytes) else text
        enhanced = re.match(r"[245]\.\d{1,3}\.\d{1,3}\b", message)
        codes = f"{code} {enhanced[0]}" if enhanced else str(code)
        return Undelivered(f"{self._server.name} answered {codes} to {self._stage}", final=final)

    def left(self) -> float:
        """Seconds that are left. Raises `Undelivered` if there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0 or self._is_over:
            self.end()
            raise Undelivered(f"{self._server.name} did not accept the mail in time")
        return left


class _Connection(smtplib.SMTP):
    """A connection that its conversation can end while it waits for the greeting, too."""

    def __init__(self, conversation: Conversation, *where: Any, **options: Any) -> None:
        self._conversation, conversation.smtp = conversation, self
        super().__init__(*where, **options)

    def send(self, s: Any) -> None:
        """Before each command there has to be time left, and it may take no longer."""
        left = self._conversation.left()
        if self.sock is not None:
            self.sock.settimeout(left)
        super().send(s)

    def getreply(self) -> tuple[int, bytes]:
        self._conversation.left()
        return super().getreply()


class _TlsConnection(_Connection, smtplib.SMTP_SSL):
    """The same with TLS from the first byte."""


@cache
def own_name() -> str:
    """The host name that this machine sends to servers."""
    return socket.getfqdn()
