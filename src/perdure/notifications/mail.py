"""The receiver of the outbox's mail topic: builds each mail and hands it to the SMTP server.

The commit that stores a question also stores one message for each recipient. The content is read at
delivery. If the question is no longer open, its message is dropped.

    killed before the server's 250     sent by another worker after a minute
    killed after it, before the delete sent again with the same Message-ID
    refused for good (5xx)             given up; stays in the outbox with the server's code
    any other failure                  retried for three days, like a webhook
    an unknown recipient               the same: during a deploy another worker may have them
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib.util import find_spec

from perdure.commands import waits
from perdure.commands.connection import MISSING, PublicUrl
from perdure.commands.mail import Mail, SmtpServer
from perdure.commands.question_links import make_link
from perdure.commands.waits import WaitRow
from perdure.errors import AnswerRefused, BadArgument, Error, NotFound, needs_extra
from perdure.execution.engine import Engine
from perdure.execution.outbox import Receiver, Undelivered
from perdure.notifications.webhooks import ReportedRun, pause
from perdure.types import Message
from perdure.views.mail_text import MailText
from perdure.views.question_mail import question_mail, run_mail

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
        from perdure.notifications.smtp import hand_over, letter

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
