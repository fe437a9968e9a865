"""A mail provider on this machine: a real SMTP server that fails on demand, and logs what it
accepts.

Its log has every mail it accepted, in order, duplicates included. Over HTTP it says whether it has
a mail: `GET /messages/{message_id}` is 200 if it was accepted, 404 if it was not, and 503 while it
is being received. So a 404 stays true of everything sent before it.

In a process of its own: `python -m examples.campaign.postoffice --log FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .desk import Desk, Shut
from .faults import (
    REPLIES,
    USUAL,
    Fault,
    Faults,
    Mail,
    Moment,
    Reply,
    random_faults,
    scripted,
)
from .refusals import Stage

__all__ = [
    "USUAL",
    "Fault",
    "Faults",
    "Mail",
    "Moment",
    "PostOffice",
    "Reply",
    "Stage",
    "random_faults",
    "scripted",
]

HOST = "127.0.0.1"
BUSY = "421 4.3.2 Too busy, come again later"


class PostOffice:
    """The provider, in a thread of its own for as long as a `with` block runs.

    `on(moment, mail)` is called in a thread whenever a conversation reaches a moment, and the
    conversation goes on when it returns. What it raises is raised again at the end of the block.

    These may be set at any time, and apply to every sender: with `busy`, connections are answered
    with 421; with `down`, they are closed at once; `refuses` answers each mail, as for an unwelcome
    sender; with `lookup_down`, look-ups are answered with 503.
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
        smtp_options: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.faults, self.on, self.late, self.log_file = faults, on, late, log_file
        self.busy = self.down = self.lookup_down = False
        self.refuses: Reply | None = None
        self.desks: set[Desk] = set()
        self._ports = smtp_port, http_port
        self._smtp_options, self._tls = smtp_options or {}, tls
        self._lock = threading.Lock()
        self._log: list[Mail] = []
        self._conversations: list[Mail] = []
        self._accepted: dict[str, Mail] = {}
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
        if self.refuses and not self.refuses.at.is_ours:
            drawn = self.refuses  # from here on it holds for this mail, whatever is set meanwhile
        fault, reply = (None, drawn) if isinstance(drawn, Reply) else (drawn, None)
        if fault:
            reply = REPLIES.get(fault)
        return replace(mail, recipient=recipient, attempt=number, fault=fault, reply=reply)

    def answer(self, stage: Stage, mail: Mail | None = None) -> str | None:
        """The refusal at this stage, if any."""
        reply = self.refuses if stage.is_ours else mail and mail.reply
        return reply.text if reply and reply.at is stage else None

    async def reach(self, moment: Moment, mail: Mail) -> Mail:
        """Record it, and let the watcher act now."""
        mail = replace(mail, reached=moment)
        with self._lock:
            self._conversations[mail.conversation] = mail
        if self.on:  # the watcher is told even if the connection is lost right now
            await asyncio.shield(self._loop.run_in_executor(None, self._tell, moment, mail))
        return mail

    def _tell(self, moment: Moment, mail: Mail) -> None:
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
        self._arriving[bare(id)] += 1
        try:
            mail = await self.reach(Moment.DATA, mail)
            if not self.answer(Stage.CONTENT, mail) and mail.fault is not Fault.DROP_BEFORE:
                mail = self._accept(mail)
        finally:
            self._arriving[bare(id)] -= 1
        return await self.reach(Moment.ACCEPTED, mail) if mail.accepted is not None else mail

    def _accept(self, mail: Mail) -> Mail:
        mail = replace(mail, accepted=time.monotonic(), accepted_at=time.time())
        if self.log_file:
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(mail)) + "\n")
        with self._lock:
            self._log.append(mail)
        self._accepted.setdefault(bare(mail.message_id), mail)
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
            self._desk, HOST, self._ports[0], backlog=1024, ssl=self._tls
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

    def _desk(self) -> asyncio.BaseProtocol:
        why = BUSY if self.busy else self.answer(Stage.CONNECT)
        if self.down or why:
            return Shut(None if self.down else why)
        return Desk(self, self._loop, self._smtp_options)

    async def _look_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            request = await reader.readuntil(b"\r\n\r\n")
            status, found = self._found(request.decode("latin-1").split("\r\n", 1)[0])
            body = json.dumps(found).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()

    def _found(self, request: str) -> tuple[str, dict[str, Any]]:
        method, _, rest = request.partition(" /messages/")
        id = unquote(rest.partition(" ")[0])
        if method != "GET" or not id:
            return "400 Bad Request", {"error": "ask for GET /messages/{message_id}"}
        mail = self._accepted.get(bare(id))
        if self.lookup_down or (mail is None and self._arriving[bare(id)]):
            return "503 Service Unavailable", {"error": "ask again later"}
        found = {"message_id": id, "accepted_at": mail.accepted_at if mail else None}
        return "200 OK" if mail else "404 Not Found", found


def bare(message_id: str) -> str:
    """A Message-ID without its brackets."""
    return message_id.strip("<>")


def main() -> None:
    """Serve until SIGTERM or SIGINT. Prints its addresses when it is ready."""
    parser = argparse.ArgumentParser(prog="postoffice", description=__doc__)
    parser.add_argument("--smtp-port", type=int, default=0)
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--log", type=Path, help="one line of JSON per accepted mail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=float, default=0.0, help="share of failed attempts, 0-1")
    parser.add_argument("--late", type=float, default=5.0, help="delay of a late answer")
    asked = parser.parse_args()
    ending = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    with PostOffice(
        random_faults(asked.seed, asked.faults),
        late=asked.late,
        log_file=asked.log,
        smtp_port=asked.smtp_port,
        http_port=asked.http_port,
    ) as office:
        print(f"smtp {HOST}:{office.smtp_port} lookup {office.lookup_url}", flush=True)
        signal.sigwait(ending)


if __name__ == "__main__":
    main()
