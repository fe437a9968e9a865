"""A mail as the bytes sent to an SMTP server.

Every attempt has the same Message-ID, so that mail programs show a duplicate once.
"""

from __future__ import annotations

from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr

from perdure.views.mail_text import MailText

POLICY = SMTP.clone(cte_type="7bit")
"""For servers that take ASCII only, too."""


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
