"""A mail provider on this machine: a real SMTP server that fails on demand, and logs what it
accepts.

Its log has every mail it accepted, in order, duplicates included. Over HTTP it says whether it has
a mail: `GET /messages/{message_id}` is 200 if it was accepted, 404 if it was not, and 503 while it
is being received. It accepts complete content even if its sender is gone by then: the worst case
for a sender that retries.

In a process of its own: `python -m examples.campaign.demo.postoffice --log FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from email.parser import BytesHeaderParser
from enum import StrEnum
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from aiosmtpd.smtp import SMTP, Envelope, Session

from ..refusals import Stage

HOST = "127.0.0.1"


class Fault(StrEnum):
    """A way to fail."""

    GREYLIST = "is greylisted"
    BUSY = "is refused by a busy server, which hangs up"
    HANG_UP = "gets no answer to DATA, but the end of the connection"
    REJECT_RECIPIENT = "has an unknown recipient"
    REJECT_BARE = "is refused without a reason"
    REJECT_DATA = "has a text that is refused"
    DROP_BEFORE = "is lost, as the connection drops"
    DROP_AFTER = "is accepted, and the connection drops"
    LATE = "is accepted, and answered late"


@dataclass(frozen=True)
class Reply:
    """A refusal, word for word. After a 421 the server hangs up."""

    text: str
    at: Stage = Stage.RECIPIENT
    """To one mail RECIPIENT or CONTENT; what `PostOffice.refuses` says to all also SENDER."""


REPLIES = {
    Fault.GREYLIST: Reply("451 4.7.1 Greylisted, come again later"),
    Fault.BUSY: Reply("421 4.3.2 Too busy, come again later"),
    Fault.REJECT_RECIPIENT: Reply("550 5.1.1 No such mailbox"),
    Fault.REJECT_BARE: Reply("550 Requested action not taken"),
    Fault.REJECT_DATA: Reply("554 5.7.1 Not wanted here", Stage.CONTENT),
}
"""The faults that are answers."""


class Moment(StrEnum):
    """How far a conversation has come."""

    BEGAN = "has begun"
    DATA = "has arrived, and is not accepted yet"
    ACCEPTED = "is accepted, and not answered yet"
    ANSWERED = "is answered"


@dataclass(frozen=True)
class Mail:
    """A conversation about one mail. Times are of `time.monotonic()`, which processes share."""

    conversation: int
    sender: str
    began: float
    """When MAIL FROM came."""
    recipient: str = ""
    attempt: int = 0
    """Number of the conversation about a mail to this recipient, from 1."""
    fault: Fault | None = None
    reply: Reply | None = None
    """The refusal to answer with, if any."""
    reached: Moment | None = None
    message_id: str = ""
    subject: str = ""
    content: str = ""
    accepted: float | None = None


Faults = Callable[[str, int], Fault | Reply | None]
"""From a recipient and the number of the attempt, from 1."""


def scripted(plan: Mapping[tuple[str, int], Fault | Reply]) -> Faults:
    """Fails as planned by recipient and attempt."""
    return lambda recipient, attempt: plan.get((recipient, attempt))


def random_faults(seed: int, rate: float) -> Faults:
    """Fails at this rate; an attempt's fate depends on its recipient and number, not on others."""

    def draw(recipient: str, attempt: int) -> Fault | None:
        chance = random.Random(f"{seed}/{recipient}/{attempt}")
        return chance.choice(list(Fault)) if chance.random() < rate else None

    return draw


class PostOffice:
    """The provider, in a thread of its own for as long as a `with` block runs.

    `on(moment, mail)` is called in a thread whenever a conversation reaches a moment, and the
    conversation goes on when it returns. What it raises is raised again at the end of the block.

    These may be set at any time, and apply to every sender: with `down`, connections are closed at
    once; `refuses` answers each mail; with `lookup_down`, look-ups are answered with 503.
    """

    smtp_port: int
    http_port: int
    lookup_url: str

    def __init__(
        self,
        faults: Faults | None = None,
        on: Callable[[Moment, Mail], object] | None = None,
        *,
        late: float = 5.0,
        log_file: Path | None = None,
        smtp_port: int = 0,
        http_port: int = 0,
    ) -> None:
        self.faults, self.on, self.late, self.log_file = faults, on, late, log_file
        self.down = self.lookup_down = False
        self.refuses: Reply | None = None
        self.desks: set[Desk] = set()
        self._ports = smtp_port, http_port
        self._lock = threading.Lock()
        self._log: list[Mail] = []
        self._conversations: list[Mail] = []
        self._accepted: set[str] = set()
        self._arriving: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._problems: list[BaseException] = []
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="postoffice", daemon=True)

    def __enter__(self) -> PostOffice:
        self._thread.start()
        self._ready.result()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._problems and kind is None:
            raise self._problems[0]

    @property
    def log(self) -> list[Mail]:
        """Every mail that was accepted, in order. Nothing is left out, nothing is merged."""
        with self._lock:
            return list(self._log)

    @property
    def conversations(self) -> list[Mail]:
        """Every MAIL FROM received, and how far it got."""
        with self._lock:
            return list(self._conversations)

    # -- what the desks report, in the loop

    def begin(self, sender: str) -> Mail:
        with self._lock:
            mail = Mail(len(self._conversations), sender, time.monotonic())
            self._conversations.append(mail)
        return mail

    def attempt(self, mail: Mail, recipient: str) -> Mail:
        self._attempts[recipient] += 1
        number = self._attempts[recipient]
        drawn: Fault | Reply | None = self.faults(recipient, number) if self.faults else None
        if self.refuses and self.refuses.at is not Stage.SENDER:
            drawn = self.refuses  # from here on it holds for this mail, whatever is set meanwhile
        fault, reply = (None, drawn) if isinstance(drawn, Reply) else (drawn, None)
        if fault:
            reply = REPLIES.get(fault)
        return replace(mail, recipient=recipient, attempt=number, fault=fault, reply=reply)

    async def reach(self, moment: Moment, mail: Mail) -> Mail:
        """Record it, and let the watcher act now."""
        mail = replace(mail, reached=moment)
        with self._lock:
            self._conversations[mail.conversation] = mail
        if self.on:  # the watcher is told even if the connection is lost right now
            await asyncio.shield(self._loop.run_in_executor(None, self._notify, moment, mail))
        return mail

    def _notify(self, moment: Moment, mail: Mail) -> None:
        try:
            assert self.on is not None
            self.on(moment, mail)
        except BaseException as error:
            self._problems.append(error)

    async def receive(self, mail: Mail, content: bytes) -> Mail:
        """Accept the content, unless it is to fail first."""
        headers = BytesHeaderParser().parsebytes(content)
        id, subject = (str(headers.get(name, "")).strip() for name in ("Message-ID", "Subject"))
        text = content.decode("utf-8", "surrogateescape")
        mail = replace(mail, message_id=id, subject=subject, content=text)
        self._arriving[id] += 1
        try:
            mail = await self.reach(Moment.DATA, mail)
            refused = mail.reply is not None and mail.reply.at is Stage.CONTENT
            if not refused and mail.fault is not Fault.DROP_BEFORE:
                mail = self._accept(mail)
        finally:
            self._arriving[id] -= 1
        return await self.reach(Moment.ACCEPTED, mail) if mail.accepted is not None else mail

    def _accept(self, mail: Mail) -> Mail:
        mail = replace(mail, accepted=time.monotonic())
        if self.log_file:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(mail)) + "\n")
        with self._lock:
            self._log.append(mail)
        self._accepted.add(mail.message_id)
        return mail

    # -- the servers

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_default_executor(ThreadPoolExecutor(64))
        smtp = await self._loop.create_server(
            lambda: Desk(self, self._loop), HOST, self._ports[0], backlog=1024
        )
        http = await asyncio.start_server(self._look_up, HOST, self._ports[1], backlog=1024)
        self.smtp_port = smtp.sockets[0].getsockname()[1]
        self.http_port = http.sockets[0].getsockname()[1]
        self.lookup_url = f"http://{HOST}:{self.http_port}/messages/{{message_id}}"
        self._ready.set_result(None)
        await self._stop.wait()
        smtp.close()
        http.close()
        while self.desks:
            for desk in list(self.desks):
                if desk.transport:
                    desk.transport.abort()
            await asyncio.sleep(0)

    async def _look_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            id = unquote(request.partition(" /messages/")[2].partition(" ")[0])
            status = "200 OK" if id in self._accepted else "404 Not Found"
            if self.lookup_down or (id not in self._accepted and self._arriving[id]):
                status = "503 Service Unavailable"
            body = json.dumps({"message_id": id}).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()


class Desk(SMTP):
    """One connection, which handles its own mails: one at a time, each to one recipient."""

    transport: asyncio.WriteTransport | None

    def __init__(self, office: PostOffice, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(self, loop=loop, hostname="localhost")
        self.office = office
        self.mail: Mail | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.office.down:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()
            return
        self.office.desks.add(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self.office.desks:
            self.office.desks.discard(self)
            super().connection_lost(error)

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        if self.mail and self.mail.fault is Fault.HANG_UP:
            await self.hang_up()
        await super().smtp_DATA(arg)
        if self.mail and self.mail.reached is Moment.ACCEPTED:
            self.mail = await self.office.reach(Moment.ANSWERED, self.mail)

    async def hang_up(self, reply: str | None = None) -> NoReturn:
        assert self.transport is not None
        if reply:
            await self.push(reply)
            self.transport.close()
        else:
            self.transport.abort()
        await asyncio.Future()  # until the loss of the connection ends this conversation
        raise AssertionError

    async def handle_MAIL(  # noqa: N802
        self, desk: Desk, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.mail = self.office.begin(address)
        refuses = self.office.refuses
        if refuses is not None and refuses.at is Stage.SENDER:
            return refuses.text
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(  # noqa: N802
        self, desk: Desk, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        assert self.mail is not None
        if envelope.rcpt_tos:
            return "452 4.5.3 One recipient at a time"
        self.mail = self.office.attempt(self.mail, address)
        self.mail = await self.office.reach(Moment.BEGAN, self.mail)
        reply = self.mail.reply
        if reply is not None and reply.at is Stage.RECIPIENT:
            if reply.text.startswith("421"):
                await self.hang_up(reply.text)
            return reply.text
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, desk: Desk, session: Session, envelope: Envelope
    ) -> str:
        assert self.mail is not None
        assert envelope.original_content is not None
        receiving = asyncio.create_task(self.office.receive(self.mail, envelope.original_content))
        self.mail = await asyncio.shield(receiving)
        if self.mail.fault in (Fault.DROP_BEFORE, Fault.DROP_AFTER):
            await self.hang_up()
        if self.mail.fault is Fault.LATE:
            await asyncio.sleep(self.office.late)
        reply = self.mail.reply
        return reply.text if reply is not None and reply.at is Stage.CONTENT else "250 OK"


def main() -> None:
    """Serve until SIGTERM or SIGINT. Prints its addresses when it is ready."""
    parser = argparse.ArgumentParser(prog="postoffice")
    parser.add_argument("--smtp-port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="one line of JSON per accepted mail")
    options = parser.parse_args()
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    with PostOffice(
        log_file=options.log, smtp_port=options.smtp_port, http_port=options.http_port
    ) as office:
        print(f"smtp {HOST}:{office.smtp_port} lookup {office.lookup_url}", flush=True)
        signal.sigwait(ending)


if __name__ == "__main__":
    main()
