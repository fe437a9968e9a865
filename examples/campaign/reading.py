"""Reading mail that came in: who wrote, about which mail of ours, and what it means.

| kind | |
|---|---|
| `bounce` | our mail was not delivered, for good; `address` is its recipient |
| `unsubscribe` | the writer, or the person who reported spam, wants no more mail |
| `automatic` | a machine wrote: out of office, a delay, a receipt; it ends nothing |
| `reply` | everything else: when in doubt a person wrote |

Anybody can write anything into a mail. A bounce is worth as much as its `in_reply_to`: only we and
its recipient know the Message-ID of our mail, so a report that names none of ours is not about us.

`parse` never raises. Its texts can be stored: they have no NUL and no half characters.
"""

from __future__ import annotations

import email
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.message import Message
from typing import Literal

from .mailtext import ADDRESS, LONGEST, addresses, decoded, plain, storable, words
from .quoting import spoken
from .unsubscribing import asks_to_stop, says_only_stop

Kind = Literal["reply", "bounce", "unsubscribe", "automatic"]

_ID = re.compile(r"<[^<>\s]{1,500}>")
_MOST_IDS = 100
_MOST_AUTHORS = 20

_MOST_RECIPIENTS = 1000
TOKEN = re.compile(r"[0-9a-f]{20}")
"""What a contact's token looks like (contacts.py makes them)."""
_RECIPIENTS = ("To", "Cc", "Delivered-To", "X-Original-To", "Resent-To")
_ROBOTS = ("X-Autoreply", "X-Autorespond")
_PREFIXES = re.compile(
    r"(?:\s*+(?:(?:re|aw|antw|sv|vs|ref|rv|res|odp|ynt|fwd?|wg|tr|enc)(?:[\[(]\d+[\])])? ?:"
    r"|\[[^\[\]]{1,30}+\]))++",
    re.I,
)
"""What mail programs and servers write before a subject."""
_FAILED = re.compile(r"fail|undeliver|returned|could not be delivered|not delivered", re.I)
_DELAYED = re.compile(r"delay|warning|still trying", re.I)
_RETURNED_ID = re.compile(r"(?im)^[> \t]*message-id:\s*(<[^<>\s]{1,500}>)")


@dataclass(frozen=True)
class Written:
    """A mail of ours that a mail answers."""

    subject: str
    body: str


@dataclass(frozen=True)
class Incoming:
    """A mail that came in."""

    message_id: str
    """Its own, or one made of its content if it has none that can be used."""
    address: str
    """Its author, or the recipient of the mail that bounced, in lower case; empty if unknown."""
    kind: Kind
    in_reply_to: list[str]
    """The Message-IDs it answers, the nearest first; of a bounce, that of the mail it returns."""
    subject: str
    text: str
    """What was written, without what was quoted."""
    others: list[str] = field(default_factory=list)
    """Other authors, from its From and Reply-To."""
    tokens: list[str] = field(default_factory=list)
    """Tokens of the unsubscribe addresses it went to."""


def parse(
    content: bytes,
    unsubscribe: str = "",
    envelope: Sequence[str] = (),
    ours: Sequence[Written] = (),
) -> Incoming:
    """Read a mail. `unsubscribe` is the address that takes people off the list, `envelope` the
    recipients to whom the mail server handed it over: they need not be in a header. `ours` are the
    mails in its `in_reply_to` that we wrote: what it quotes of them is not the writer's.

    Somebody unsubscribes by writing to that address, or to the same with the token of a contact in
    it (`unsubscribe+TOKEN@`), or by saying so (`unsubscribing.py`). The subject of an answer counts
    only if it says nothing else, and is not ours.
    """
    unsubscribe, envelope = unsubscribe.lower(), [_spelling(one.lower()) for one in envelope]
    try:
        mail = email.message_from_bytes(content)
        return _read(mail, content, ours, _leaving(mail, unsubscribe, envelope))
    except Exception:  # the email package gives up on garbage in many ways
        text = storable(content.decode("utf-8", "replace"))[:LONGEST]
        is_to_leave, tokens = _leaving(Message(), unsubscribe, envelope)
        kind: Kind = "unsubscribe" if is_to_leave else "reply"
        return Incoming(_made_id(content), "", kind, _ids(text[:10_000]), "", text, tokens=tokens)


def _read(
    mail: Message, content: bytes, ours: Sequence[Written], leaving: tuple[bool, list[str]]
) -> Incoming:
    is_to_leave, tokens = leaving
    text = spoken(plain(mail), [one.body for one in ours])
    subject = words(mail, "Subject")
    authors = addresses(mail, "From", "Reply-To")[:_MOST_AUTHORS]
    address, answers = _author(mail), _ids(words(mail, "In-Reply-To"), words(mail, "References"))
    kind: Kind = "reply"
    report = mail.get_content_type() == "multipart/report"
    about = str(mail.get_param("report-type", "")).lower() if report else ""
    if about == "feedback-report":  # often with an empty return path, as a bounce has
        kind, address, answers = "unsubscribe", _returned(mail, "unsubscribe"), _returned_ids(mail)
    elif (
        about == "delivery-status"
        or _by_a_daemon(mail)
        or (_has_no_return_path(mail) and not tokens)
    ):
        kind = _delivery(mail, subject)
        address = _returned(mail, kind) or (address if kind == "automatic" else "")
        answers = _returned_ids(mail) or answers
    elif is_to_leave or _says_only_stop(subject, ours):
        kind = "unsubscribe"
    elif report or _automatic(mail):
        kind = "automatic"
    elif asks_to_stop(text) or (not answers and asks_to_stop(subject)):
        kind = "unsubscribe"
    if kind in ("reply", "unsubscribe"):  # ours may be attached
        answers = list(dict.fromkeys([*answers, *_attached_ids(mail)]))[:_MOST_IDS]
    own = _ID.fullmatch(words(mail, "Message-ID"))
    message_id = own[0] if own else _made_id(content)
    others = [one for one in dict.fromkeys(authors) if one != address] if address in authors else []
    tokens = tokens if kind == "unsubscribe" else []
    return Incoming(message_id, address, kind, answers, subject, text, others, tokens)


def _leaving(mail: Message, unsubscribe: str, envelope: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a mail went to the unsubscribe address, and the tokens in it.

    Mail servers rewrite the envelope (`replies+TOKEN@campaign.invalid`): there a token counts
    behind any name.
    """
    local, _, domain = unsubscribe.rpartition("@")
    if not domain:
        return False, []
    named = [_spelling(one) for one in addresses(mail, *_RECIPIENTS)[:_MOST_RECIPIENTS]]
    everybody = [*named, *envelope[:_MOST_RECIPIENTS]]
    labelled = [
        one for one in everybody if one.startswith(f"{local}+") and one.endswith(f"@{domain}")
    ]
    tokens = [one.removeprefix(f"{local}+").removesuffix(f"@{domain}") for one in labelled]
    tokens += [one.rpartition("@")[0].rpartition("+")[2] for one in envelope if "+" in one]
    found = [one for one in dict.fromkeys(tokens) if TOKEN.fullmatch(one)]
    return bool(found or labelled) or unsubscribe in everybody, found


def _spelling(recipient: str) -> str:
    """An address as it is without what programs on the way do to its plus."""
    return recipient.replace('"', "").replace("%2b", "+")


def _author(mail: Message) -> str:
    """The address of the first From, and of no other header."""
    return next(iter(addresses(mail, "From")), "")


def _ids(first: str = "", *chains: str) -> list[str]:
    """The Message-IDs in some texts. In a chain of them the nearest is the last."""
    found = [*_ID.findall(first), *(one for chain in chains for one in _ID.findall(chain)[::-1])]
    return list(dict.fromkeys(found))[:_MOST_IDS]


def _made_id(content: bytes) -> str:
    return f"<{hashlib.sha256(content).hexdigest()[:40]}@no-message-id.invalid>"


# -- what it means


def _says_only_stop(subject: str, ours: Sequence[Written]) -> bool:
    bare = _bare(subject)
    return says_only_stop(bare) and bare not in [_bare(one.subject) for one in ours]


def _bare(subject: str) -> str:
    """A subject without its `Re:`."""
    found = _PREFIXES.match(subject)
    return " ".join(subject[found.end() if found else 0 :].casefold().split())


def _by_a_daemon(mail: Message) -> bool:
    return _author(mail).startswith("mailer-daemon@")


def _has_no_return_path(mail: Message) -> bool:
    """A machine wrote: people have a return path."""
    return "Return-Path" in mail and words(mail, "Return-Path") in ("", "<>")


def _delivery(mail: Message, subject: str) -> Kind:
    """Whether a note about a delivery says that it failed for good."""
    told = [block for block in _blocks(mail, "delivery-status") if "Action" in block]
    if told:
        failed = any(words(block, "Action").lower() == "failed" for block in told)
    elif _DELAYED.search(subject):
        failed = False
    else:
        failed = (
            _by_a_daemon(mail) or "X-Failed-Recipients" in mail or bool(_FAILED.search(subject))
        )
    return "bounce" if failed else "automatic"


def _automatic(mail: Message) -> bool:
    submitted = words(mail, "Auto-Submitted").lower().partition(";")[0].strip()
    return (
        submitted not in ("", "no")
        or words(mail, "Precedence").lower() in ("auto_reply", "bulk", "junk")
        or any(words(mail, name).lower() not in ("", "no") for name in _ROBOTS)
    )


# -- what came back with a report


def _blocks(mail: Message, subtype: str) -> Iterator[Message]:
    """The groups of fields of a report."""
    for part in mail.walk():
        if part.get_content_type() == f"message/{subtype}":
            inside = part.get_payload()
            if isinstance(inside, list):
                yield from (block for block in inside if isinstance(block, Message))
            else:
                yield email.message_from_string(str(inside).lstrip())


def _returned(mail: Message, kind: Kind) -> str:
    """The recipient of our mail."""
    groups = [*_blocks(mail, "delivery-status"), *_blocks(mail, "feedback-report")]
    if kind == "bounce":
        groups = [one for one in groups if words(one, "Action").lower() == "failed"]
    named = [
        words(one, name).rpartition(";")[2]
        for name in ("Original-Recipient", "Final-Recipient", "Original-Rcpt-To")
        for one in groups
        if name in one
    ]
    named.append(words(mail, "X-Failed-Recipients").partition(",")[0])
    named += [words(one, "To") for one in _originals(mail)]
    return next((found[0].lower() for found in map(ADDRESS.search, named) if found), "")


def _returned_ids(mail: Message) -> list[str]:
    """The Message-ID of our mail."""
    return _attached_ids(mail) or _ids(*_RETURNED_ID.findall(plain(mail))[:_MOST_IDS])


def _attached_ids(mail: Message) -> list[str]:
    return _ids(*(words(one, "Message-ID") for one in _originals(mail)))


def _originals(mail: Message) -> Iterator[Message]:
    """Mails that are attached, or their headers: ours, as it came back."""
    for part in mail.walk():
        kind, inside = part.get_content_type(), part.get_payload()
        if kind in ("message/rfc822", "message/rfc822-headers") and isinstance(inside, list):
            yield from (one for one in inside if isinstance(one, Message))
        elif kind == "text/rfc822-headers":
            yield email.message_from_string(decoded(part))
