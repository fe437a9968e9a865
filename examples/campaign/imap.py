"""A folder on an IMAP server, read without changing anything in it.

It is opened with EXAMINE and read with BODY.PEEK, so no mail is marked as read. Whatever goes wrong
is a `MailboxTrouble` that says what was being done.
"""

from __future__ import annotations

import base64
import contextlib
import imaplib
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any

from perdure.times import moment

from .settings import Settings

TIMEOUT = 20.0
"""Seconds for each answer of the server."""
PART = 1024 * 1024
"""Bytes of a mail that are read. What a person writes comes first, attachments follow."""
_NOT_NOW = ("[UNAVAILABLE]", "[LIMIT]", "[INUSE]", "[SERVERBUG]")
"""A login refused with one of these may succeed later (RFC 5530)."""


class MailboxTrouble(Exception):
    """The mailbox cannot be read now."""


class MailNotGiven(MailboxTrouble):
    """The server said no to a question that it understood."""


class MailboxRefused(MailboxTrouble, ValueError):
    """The server refused the login or the folder: a person has to change a setting."""


@dataclass(frozen=True)
class Account:
    """Where the folder is, and who may read it."""

    host: str
    port: int = 993
    user: str = ""
    password: str = field(default="", repr=False)
    folder: str = "INBOX"
    encrypted: bool = True

    @classmethod
    def of(cls, settings: Settings) -> Account:
        if not settings.imap_host:
            raise ValueError(
                "CAMPAIGN_IMAP_HOST is not set. Set it, CAMPAIGN_IMAP_USER and "
                "CAMPAIGN_IMAP_PASSWORD to those of your mailbox."
            )
        return cls(
            settings.imap_host,
            settings.imap_port,
            settings.imap_user,
            settings.imap_password,
            settings.imap_folder,
            settings.imap_tls,
        )

    @property
    def name(self) -> str:
        return f"{self.folder} of {self.user} at {self.host}"


class Connection:
    """A conversation with the server, until `close`. `tls` overrides which certificates are
    trusted."""

    def __init__(self, account: Account, tls: ssl.SSLContext | None = None) -> None:
        self._account = account
        where = account.host, account.port
        with _speaking(f"connecting to {account.host}:{account.port}"):
            if account.encrypted:
                tls = tls or ssl.create_default_context()
                self._imap: imaplib.IMAP4 = imaplib.IMAP4_SSL(
                    *where, ssl_context=tls, timeout=TIMEOUT
                )
            else:
                self._imap = imaplib.IMAP4(*where, timeout=TIMEOUT)

    def close(self) -> None:
        with contextlib.suppress(imaplib.IMAP4.error, OSError):
            self._imap.logout()
        with contextlib.suppress(OSError):
            self._imap.shutdown()

    def login(self) -> None:
        """Raises `MailboxRefused` if the server does not want this user and password."""
        user, password = self._account.user, self._account.password
        try:
            with _speaking(f"logging in as {user}"):
                if "AUTH=PLAIN" in self._imap.capabilities:  # takes any characters, unlike LOGIN
                    self._imap.authenticate("PLAIN", lambda _: f"\0{user}\0{password}".encode())
                else:
                    self._imap.login(user, password)
        except MailNotGiven as no:
            if any(code in str(no) for code in _NOT_NOW):
                raise
            raise MailboxRefused(
                f"{str(no).rstrip('.')}; look at CAMPAIGN_IMAP_USER and CAMPAIGN_IMAP_PASSWORD "
                "(many providers want an app password, and IMAP enabled)"
            ) from no

    def examine(self) -> tuple[int, int]:
        """Open the folder for reading. Returns its UIDVALIDITY and its number of mails."""
        folder = self._account.folder
        with _speaking(f"opening {folder}"):
            answer, [told, *_] = self._imap.select(_quoted(folder), readonly=True)
            [validity, *_] = self._imap.response("UIDVALIDITY")[1]
        if answer != "OK":
            raise MailboxRefused(
                f"opening {folder}: {_words(told).rstrip('.')}; look at CAMPAIGN_IMAP_FOLDER"
            )
        return int(_words(validity) or 0), int(_words(told) or 0)

    def last(self) -> int:
        """The highest UID; 0 if the folder is empty."""
        return max(self._search("UID", "*"), default=0)

    def after(self, uid: int, since: int) -> list[int]:
        """The UIDs above this one, of mails that arrived on the day of `since` or later."""
        date = "-".join(format_datetime(moment(since)).split()[1:4])  # 07-Jan-2030
        found = self._search("UID", f"{uid + 1}:*", "SINCE", date)
        return [one for one in found if one > uid]  # `9:*` always has the last mail

    def fetch(self, uid: int) -> bytes | None:
        """The first part of a mail; None if it is gone. Raises `MailNotGiven`."""
        found = self._ask("FETCH", str(uid), f"(BODY.PEEK[]<0.{PART}>)")
        return next((bytes(part[1]) for part in found if isinstance(part, tuple)), None)

    def _search(self, *criteria: str) -> list[int]:
        found = self._ask("SEARCH", *criteria)
        return sorted(int(uid) for line in found if line for uid in line.split())

    def _ask(self, command: str, *words: str) -> list[Any]:
        what = f"{command} {' '.join(words)}"
        with _speaking(what):
            answer, found = self._imap.uid(command, *words)
        if answer != "OK":
            raise MailNotGiven(f"{what}: {_words(found[0])}")
        return found


@contextlib.contextmanager
def _speaking(what: str) -> Iterator[None]:
    """Add to an error what was being done."""
    try:
        yield
    except (imaplib.IMAP4.abort, OSError) as lost:
        raise MailboxTrouble(f"{what}: {type(lost).__name__}: {lost}") from lost
    except UnicodeEncodeError as error:
        raise MailNotGiven(f"{what}: the server takes ASCII only") from error
    except imaplib.IMAP4.error as error:
        raise MailNotGiven(f"{what}: {_words(error.args[0])}") from error


def _words(told: Any) -> str:
    """What a server said."""
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told or "")


def _quoted(folder: str) -> str:
    """The name of a folder in IMAP's own UTF-7 (RFC 3501, 5.1.3)."""

    def shifted(found: re.Match[str]) -> str:
        code = base64.b64encode(found[0].encode("utf-16-be"), altchars=b"+,").decode()
        return "&-" if found[0] == "&" else f"&{code.rstrip('=')}-"

    name = re.sub(r"&|[^\x20-\x7e]+", shifted, folder)
    return '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
