"""The SMTP side of the post office: one connection, which fails on demand.

The office accepts complete content even if its sender is gone by then: the worst case for a sender
that retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from aiosmtpd.smtp import SMTP, Envelope, Session

from .faults import Fault, Mail, Moment
from .refusals import Stage

if TYPE_CHECKING:
    from .postoffice import PostOffice


class Shut(asyncio.Protocol):
    """Answers connections that the post office refuses: gives the reason, or nothing, and hangs
    up."""

    def __init__(self, why: str | None) -> None:
        self.why = why

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        if self.why is None:
            transport.abort()
        else:
            transport.write(f"{self.why}\r\n".encode())
            transport.close()


class Desk(SMTP):
    """One connection."""

    transport: asyncio.WriteTransport | None

    def __init__(
        self, office: PostOffice, loop: asyncio.AbstractEventLoop, options: Mapping[str, Any]
    ) -> None:
        super().__init__(Clerk(office), loop=loop, hostname="localhost", **options)
        self.office = office

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.office.desks.add(self)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.office.desks.discard(self)
        super().connection_lost(error)

    async def smtp_EHLO(self, hostname: str) -> None:  # noqa: N802
        if not await self.refuse(Stage.HELLO):
            await super().smtp_EHLO(hostname)

    async def smtp_HELO(self, hostname: str) -> None:  # noqa: N802
        if not await self.refuse(Stage.HELLO):
            await super().smtp_HELO(hostname)

    async def smtp_AUTH(self, arg: str) -> None:  # noqa: N802
        if not await self.refuse(Stage.LOGIN):
            await super().smtp_AUTH(arg)

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        clerk = self.event_handler
        if clerk.mail and clerk.mail.fault is Fault.HANG_UP:
            await self.hang_up()
        if await self.refuse(Stage.DATA, clerk.mail):
            return
        await super().smtp_DATA(arg)
        if clerk.mail and clerk.mail.reached is Moment.ACCEPTED:
            clerk.mail = await self.office.reach(Moment.ANSWERED, clerk.mail)

    async def answer(self, stage: Stage, mail: Mail | None = None) -> str | None:
        """The refusal at this stage, if any. A 421 is sent here, and ends the connection."""
        text = self.office.answer(stage, mail)
        if text and text.startswith("421"):
            await self.hang_up(text)
        return text

    async def refuse(self, stage: Stage, mail: Mail | None = None) -> bool:
        """Send the refusal at this stage, if any. Returns whether there was one."""
        if text := await self.answer(stage, mail):
            await self.push(text)
        return bool(text)

    async def hang_up(self, reply: str | None = None) -> NoReturn:
        assert self.transport is not None
        if reply:
            await self.push(reply)
            self.transport.close()
        else:
            self.transport.abort()
        await asyncio.Future()  # until the loss of the connection ends this conversation
        raise AssertionError


class Clerk:
    """Handles the mails of one connection, one at a time, each to one recipient."""

    def __init__(self, office: PostOffice) -> None:
        self.office = office
        self.mail: Mail | None = None

    async def handle_MAIL(  # noqa: N802
        self, desk: Desk, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.mail = self.office.begin(address)
        if said := await desk.answer(Stage.SENDER):
            return said
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
        if said := await desk.answer(Stage.RECIPIENT, self.mail):
            return said
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802
        self, desk: Desk, session: Session, envelope: Envelope
    ) -> str:
        assert self.mail is not None
        assert envelope.original_content is not None
        receiving = asyncio.create_task(self.office.receive(self.mail, envelope.original_content))
        self.mail = await asyncio.shield(receiving)
        match self.mail.fault:
            case Fault.DROP_BEFORE | Fault.DROP_AFTER:
                await desk.hang_up()
            case Fault.LATE:
                await asyncio.sleep(self.office.late)
        return await desk.answer(Stage.CONTENT, self.mail) or "250 OK"
