"""Reading incoming mail: who wrote it, which mail of ours it is about, and what it means.

| kind | |
|---|---|
| `bounce` | there is no such recipient; `address` is that recipient |
| `unsubscribe` | the writer, or the person who reported spam, wants no more mail |
| `automatic` | a machine wrote: out of office, a delay, a receipt; it ends nothing |
| `reply` | everything else: when in doubt a person wrote |

A mail can claim anything. A bounce is only as credible as its `in_reply_to`: only we and its
recipient know the Message-ID of our mail. Bounces are recognised by flufl.bounce, the author's own
words by mail-parser-reply, and our own words, which every mail program quotes in its own way, by
their text.
"""

from __future__ import annotations

import email
import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage, Message
from email.policy import default
from email.utils import getaddresses
from typing import Literal

from flufl.bounce import all_failures
from mailparser_reply import EmailReplyParser

from .contacts import normalise
from .mail import FOOTER
from .refusals import is_no_such_recipient

Kind = Literal["reply", "bounce", "unsubscribe", "automatic"]

LONGEST = 20_000
"""Maximum characters of a text that are read."""
TOKEN = re.compile(r"[0-9a-f]{20}")
"""What a contact's token looks like."""
_ID = re.compile(r"<[^<>\s]{1,500}>")
_RETURNED_ID = re.compile(r"(?im)^[> \t]*message-id:\s*(<[^<>\s]{1,500}>)")
_STATUS = re.compile(r"(?im)^status:\s*(5\.\d+\.\d+)")
_AWAY = re.compile(
    r"(auto(matic|mated)?[ -]?(reply|response)|out of (the )?office|automatische antwort|abwesen"
    r"|r[ée]ponse automatique|respuesta autom|risposta automatica)",
    re.IGNORECASE,
)
_PREFIXES = re.compile(r"^(\s*(re|aw|antw|sv|rv|fwd?|wg|tr)\s*:)+", re.IGNORECASE)
_LANGUAGES = ["en", "de", "fr", "es", "it", "nl", "pl", "sv", "da"]

_HELLO = r"(hi|hello|hey|dear|hallo|hola|bonjour)( \w+)?"
_FILLER = r"(please|pls|kindly|just|no|thanks|thank you|bitte|danke|merci|gracias|graag|me|now|it)"
_ALONE = re.compile(
    rf"({_HELLO} )?({_FILLER} )*(stop|unsubscribe|remove|cancel|quit|end|opt ?out"
    rf"|no more( e ?mails?)?|abmelden|abbestellen|austragen|baja|desinscri\w+|desabonn\w+"
    rf"|arret\w*|afmelden|uitschrijven|cancellami|descadastrar)"
    rf"( {_FILLER}| this| these| e ?mails?)*"
)
"""A line that says nothing else."""
_OPTS_OUT = re.compile(
    r"\bunsubscribe\b|\bopt(ing)? ?(me )?out\b|\btake (me|us|my \w+) off\b|\bremove (me|us|my)\b"
    r"|\b(stop|quit) (e ?mail|mail|writ|contact|send|spam|messag)\w*|\bno (more|further) (e ?)?mail"
    r"|\b(do not|dont|never) (e ?mail|mail|write|contact|send|spam)\b|\bleave me alone\b"
    r"|\b(do not|dont|no longer) (want|wish) to (receive|get|hear|be)\b|\bplease stop\b"
    r"|\bkeine (weiteren )?(e ?)?(mails?|nachrichten|newsletter|werbung)\b"
    r"|\babmeld\w+|\baustragen\b"
    r"|\b(nicht|nichts) mehr (an)?(schreib|kontaktier|schick|mail)\w*|\babbestell\w+"
    r"|\bdes(inscri|abonn)\w+|\bne plus (recevoir|m|nous)|\bdar(me)? de baja\b|\bde ?suscrib\w+"
    r"|\bno (me )?(envi|escrib|mand|contact)\w+ mas\b|\bno quiero recibir\b|\bdisiscriv\w+"
    r"|\bcancella(mi|temi)\b|\bdescadastr\w+|\bafmelden\b|\buitschrijven\b"
)
"""A wish of the writer's, in words. Generous: a person taken off by mistake costs us a contact, and
a person written to after asking us to stop gets spam."""


@dataclass(frozen=True)
class Incoming:
    """An incoming mail."""

    message_id: str
    """Its own, or one derived from its content."""
    address: str
    """Its author, or the recipient of the mail that bounced; empty if unknown."""
    kind: Kind
    in_reply_to: list[str]
    """The Message-IDs it answers, the nearest first; for a bounce, that of the returned mail."""
    subject: str
    text: str
    """What its author wrote, without quotations."""
    tokens: list[str]
    """Tokens of the unsubscribe addresses it went to."""

    @property
    def id(self) -> str:
        """A hash, under which it is stored. Machines that write `<1@localhost>` into every mail
        must not merge two people, and a copy to the unsubscribe address must not be lost."""
        about = [self.message_id, self.address, *(["-"] if self.kind == "unsubscribe" else [])]
        return hashlib.sha256(" ".join([*about, *self.tokens]).encode()).hexdigest()


def parse(
    content: bytes,
    unsubscribe: str = "",
    envelope: Sequence[str] = (),
    ours: Sequence[str] = (),
) -> Incoming:
    """Read a mail. `unsubscribe` is the unsubscribe address; `envelope` has the recipients of the
    SMTP envelope, which need not be in a header; `ours` has the subjects and texts that it may
    quote."""
    mail = _read(content)
    subject, text = _header(mail, "Subject"), _own_words(_plain(mail), ours)
    bare = _PREFIXES.sub("", subject).strip()
    author = next(iter(_addresses(mail, "From")), "")
    answers = _ids(_header(mail, "In-Reply-To"), _header(mail, "References"))
    is_opt_out, tokens = _to_unsubscribe(mail, unsubscribe.lower(), envelope)
    report = str(mail.get_param("report-type", "")).lower()
    kind: Kind = "reply"
    if report == "feedback-report":
        returned = _returned(content)
        kind, author, answers = "unsubscribe", "", returned
    elif report == "delivery-status" or _is_by_a_daemon(mail, author):
        kind, author = _delivery(content, author)
        answers = _returned(content) or answers
    elif is_opt_out:
        kind = "unsubscribe"
    elif report or _is_automatic(mail, subject):
        kind = "automatic"
    elif opts_out(text) or (bare not in ours and _says_only_stop(bare)):
        kind = "unsubscribe"
    message_id = _ID.search(_header(mail, "Message-ID"))
    derived = f"<{hashlib.sha256(content).hexdigest()[:40]}@no-message-id.invalid>"
    return Incoming(
        message_id[0] if message_id else derived,
        author,
        kind,
        answers,
        subject,
        text,
        tokens if kind == "unsubscribe" else [],
    )


# -- headers


def _read(content: bytes) -> EmailMessage:
    try:
        return email.message_from_bytes(content, policy=default)
    except Exception:  # the email package gives up on some types of content: then it is plain text
        plain = re.sub(rb"(?im)^content-type:", b"X-Content-Type:", content)
        return email.message_from_bytes(plain, policy=default)


def _header(mail: Message, name: str) -> str:
    """A header as text that can be stored, whatever it holds; empty if it is missing."""
    try:
        value = str(mail[name] or "")
    except Exception:  # the email package gives up on garbage in many ways
        value = next(
            (str(text) for key, text in mail.raw_items() if key.lower() == name.lower()), ""
        )
    return _storable(" ".join(value.split()))


def _storable(text: str) -> str:
    """A text without what a database cannot hold."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def _addresses(mail: Message, *names: str) -> list[str]:
    found = []
    for _, address in getaddresses([_header(mail, name) for name in names]):
        try:
            found.append(normalise(address))
        except ValueError:
            continue
    return found


def _ids(*headers: str) -> list[str]:
    """The Message-IDs in some headers. In a chain of references the nearest is the last."""
    found = [one for header in headers for one in _ID.findall(header)[::-1]]
    return list(dict.fromkeys(found))[:100]


def _to_unsubscribe(
    mail: Message, unsubscribe: str, envelope: Sequence[str]
) -> tuple[bool, list[str]]:
    """Whether a mail went to the unsubscribe address, and the tokens in it. A mail server may
    rewrite the envelope: there a token counts behind any name."""
    local, _, domain = unsubscribe.rpartition("@")
    everybody = _addresses(mail, "To", "Cc", "Delivered-To", "X-Original-To")
    everybody += [one.lower() for one in envelope]
    labelled = [one for one in everybody if one.startswith(f"{local}+") and one.endswith(domain)]
    labelled += [one.lower() for one in envelope if "+" in one]
    labels = [one.rpartition("@")[0].rpartition("+")[2] for one in labelled]
    tokens = [one for one in dict.fromkeys(labels) if TOKEN.fullmatch(one)]
    return bool(tokens) or bool(unsubscribe and unsubscribe in everybody), tokens


# -- what it means


def _is_by_a_daemon(mail: Message, author: str) -> bool:
    """A machine wrote: people have a return path."""
    return author.startswith("mailer-daemon@") or _header(mail, "Return-Path") == "<>"


def _delivery(content: bytes, author: str) -> tuple[Kind, str]:
    """What a note about a delivery says, and the recipient it is about. A failure for another
    reason than the address, such as our reputation, gives up no contact."""
    try:
        _, failed = all_failures(email.message_from_bytes(content))
    except Exception:  # garbage
        return "automatic", author
    status = _STATUS.search(content.decode("utf-8", "replace"))
    if not failed or (status and not is_no_such_recipient(status[1])):
        return "automatic", author
    return "bounce", sorted(failed)[0].decode("utf-8", "replace").lower()


def _returned(content: bytes) -> list[str]:
    """The Message-ID of our mail in a report about it: not the first, which is the report's own."""
    _, _, body = content.decode("utf-8", "replace").replace("\r\n", "\n").partition("\n\n")
    return _ids(*_RETURNED_ID.findall(body))


def _is_automatic(mail: Message, subject: str) -> bool:
    submitted = _header(mail, "Auto-Submitted").lower().partition(";")[0].strip()
    return (
        submitted not in ("", "no")
        or _header(mail, "Precedence").lower() in ("auto_reply", "bulk", "junk")
        or bool(_header(mail, "X-Autoreply") or _header(mail, "X-Autorespond"))
        or bool(_AWAY.match(subject))
    )


def opts_out(text: str) -> bool:
    """Whether the writer's own words ask for no more mail. A single word counts on the first lines;
    further down it is a link in a signature."""
    lines = [line for line in text.splitlines() if line.strip()]
    return any(map(_says_only_stop, lines[:4])) or bool(_OPTS_OUT.search(_folded(text)))


def _says_only_stop(line: str) -> bool:
    clauses = re.split(r"[,.:;!]", line[:200])
    return any(_ALONE.fullmatch(_folded(one)) for one in (line[:200], *clauses))


def _folded(text: str) -> str:
    """Words with a space between them, in lower case, without links, accents, apostrophes."""
    text = re.sub(r"\w+://\S+|['\u2019]", "", text.lower())
    text = unicodedata.normalize("NFKD", text)
    text = "".join(one for one in text if not unicodedata.combining(one))
    return " ".join(re.sub(r"[\W_]", " ", text).split())


# -- the author's own words


def _plain(mail: Message) -> str:
    """The text of a mail; of HTML what a person sees, without quotations."""
    assert isinstance(mail, EmailMessage)
    try:
        part = mail.get_body(("plain", "html"))
        octets = part.get_payload(decode=True) if part is not None else b""
        assert isinstance(octets, bytes)
        charset = part.get_content_charset("utf-8") if part is not None else "utf-8"
        content = octets.decode(charset, "replace")
    except Exception:  # an unknown encoding, or broken structure
        return _storable(str(mail.get_payload()))[:LONGEST]
    if part is not None and part.get_content_subtype() == "html":
        content = re.sub(
            r"(?is)<(style|script|blockquote)\b.*?(</\1>|\Z)", " ", content[: 5 * LONGEST]
        )
        content = re.sub(r"(?i)<(br|/p|/div|/li|/tr)\b[^<>]*>", "\n", content)
        content = html.unescape(re.sub(r"<[^<>]*>", " ", content))
    return _storable(content)[:LONGEST]


def _own_words(text: str, ours: Iterable[str]) -> str:
    """The text without quotations: first of our own words, then of whatever is marked as one."""
    sentences = [FOOTER.format(link=""), FOOTER.partition("{")[0].rstrip(", ")]
    sentences += [line for one in ours for line in one.splitlines() if len(line) >= 20]
    sentences.append("answer with the one word stop.")
    for sentence in sentences:  # however it is wrapped and marked
        words = r"[\s>]+".join(map(re.escape, sentence.split()))
        text = re.sub(words, " ", text, flags=re.IGNORECASE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(">")]
    own = EmailReplyParser(languages=_LANGUAGES).parse_reply("\n".join(lines))
    return (own or "").strip()
