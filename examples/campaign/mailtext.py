"""The headers and the text of an incoming mail, as text that can be stored.

Whatever the mail contains, the result has no NUL and no half characters, and reading takes time in
proportion to its length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.utils import getaddresses
from itertools import chain

ADDRESS = re.compile(r"[^\s<>@]{1,200}@[^\s<>@]{1,200}")
LONGEST = 100_000
"""Maximum characters of a text; the rest is cut off."""

_TAG = re.compile(r"<(/?)(\w++)[^<>]*+>")
_HIDDEN = ("style", "script", "title", "blockquote")
_BREAKS = ("br", "p", "div", "tr", "li")
_DIVIDER = re.compile(
    r"-{2,} ?(Original Message|Forwarded message|Ursprüngliche Nachricht|Weitergeleitete Nachricht"
    r"|Message d.origine|Mensaje original|Messaggio originale|Oorspronkelijk bericht) ?-{2,}"
    r"|_{20,}|Begin forwarded message:",
    re.I,
)
_ATTRIBUTION = re.compile(
    r"On .*\bwrote ?:|Am .*\bschrieb\b.*:|Le .*\ba écrit ?:|El .*\bescribió ?:|Il .*\bha scritto ?:"
    r"|Em .*\bescreveu ?:|Op .*\bschreef\b.*:"
)
"""The line above a quotation."""
_SENDER = re.compile(r"\*?(From|Von|De|Da|Van) ?:\*? .*@.*", re.I)
_DATED = re.compile(
    r"\*?(Sent|Date|Gesendet|Datum|Envoyé|Date d.envoi|Enviado|Fecha|Inviato|Verzonden) ?:", re.I
)


def storable(text: str) -> str:
    """A text without what a database cannot hold."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def words(mail: Message, name: str) -> str:
    """A header as text; empty if it is missing."""
    raw = next(iter(_raw(mail, name)), "")
    try:
        pieces = [
            piece if isinstance(piece, str) else piece.decode(charset or "utf-8", "replace")
            for piece, charset in decode_header(raw)
        ]
    except (LookupError, ValueError, HeaderParseError):
        pieces = [raw]
    return storable("".join(pieces)).strip()


def addresses(mail: Message, name: str) -> list[str]:
    """The addresses in a header, in lower case."""
    return _addresses(_raw(mail, name))


def recipients(mail: Message, *names: str) -> list[str]:
    """The addresses in the recipient headers of a mail, however malformed."""
    found: list[str] = []
    for raw in (one for name in names for one in _raw(mail, name)):
        found += _addresses([raw]) or [
            one.strip("\"',;:()") for one in ADDRESS.findall(raw.lower())
        ]
    return found


def _addresses(raw: list[str]) -> list[str]:
    found = [ADDRESS.fullmatch(address) for _, address in getaddresses(raw)]
    return [one[0].lower() for one in found if one]


def _raw(mail: Message, name: str) -> list[str]:
    """All headers of a name, on one line each. Octets beyond ASCII are taken for UTF-8."""
    values = [str(value) for key, value in mail.raw_items() if key.lower() == name.lower()]
    octets = [value[:10_000].encode("utf-8", "surrogateescape") for value in values[:10]]
    return [" ".join(storable(one.decode("utf-8", "replace")).split()) for one in octets]


def plain(mail: Message) -> str:
    """The first text of a mail that is not empty, plain if there is one. Attachments do not
    count."""
    texts = [part for part in _own_parts(mail) if part.get_content_maintype() == "text"]
    plain = (decoded(one) for one in texts if one.get_content_subtype() == "plain")
    rich = (_without_tags(decoded(one)) for one in texts if one.get_content_subtype() == "html")
    return next((text for text in chain(plain, rich) if text.strip()), "")


def _own_parts(mail: Message) -> Iterator[Message]:
    """The parts of a mail, without those of attached mails and files."""
    waiting = [mail]
    while waiting:
        part = waiting.pop()
        if part is not mail and part.get_content_disposition() == "attachment":
            continue
        inside = part.get_payload()
        if part.get_content_maintype() != "multipart" or not isinstance(inside, list):
            yield part
        else:
            waiting += [one for one in reversed(inside) if isinstance(one, Message)]


def decoded(part: Message) -> str:
    """The text of a part, whatever its encoding."""
    octets = part.get_payload(decode=True)
    if not isinstance(octets, bytes):
        return ""
    try:
        text = octets.decode(part.get_content_charset() or "utf-8", "replace")
    except (LookupError, ValueError):
        text = octets.decode("utf-8", "replace")
    return storable(text)[:LONGEST]


def _without_tags(text: str) -> str:
    kept, hidden, end = [], 0, 0
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if not hidden:
            kept.append(text[end : tag.start()] + "\n" * (name in _BREAKS))
        if name in _HIDDEN:
            hidden = max(0, hidden + (-1 if tag[1] else 1))
        end = tag.end()
    return storable(html.unescape("".join(kept) + ("" if hidden else text[end:])))


def spoken(text: str) -> str:
    """The writer's own words.

    Leaves out lines that begin with `>`, an `On … wrote:`, the signature, and everything below the
    line, or the headers, that Outlook puts above a quotation. Text that follows an `On … wrote:`
    without any `>` is also quoted, if there is text before it.
    """
    lines = text.splitlines()
    kept: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        if _DIVIDER.fullmatch(line) or lines[number] in ("--", "-- ") or _headers(lines, number):
            break
        length = _attribution(lines[number : number + 3])
        if length and any(kept) and not _is_marked(lines, number + length):
            break
        if not length and not line.startswith(">"):
            kept.append(lines[number].rstrip())
        number += length or 1
    return "\n".join(kept).strip()


def _headers(lines: list[str], number: int) -> bool:
    """Whether the headers of a quoted mail begin here."""
    if not _SENDER.fullmatch(lines[number].strip()[:1000]):
        return False
    return any(_DATED.match(line.strip()) for line in lines[number + 1 : number + 4])


def _attribution(lines: list[str]) -> int:
    """Number of lines of an `On … wrote:` that begins here; 0 if none does."""
    if lines[0][:3] in ("On ", "Am ", "Le ", "El ", "Il ", "Em ", "Op "):
        for count, line in enumerate(lines, 1):
            if not line.strip():
                break
            if line.rstrip().endswith(":"):
                said = " ".join(" ".join(one[:500] for one in lines[:count]).split())
                return count if _ATTRIBUTION.fullmatch(said) else 0
    return 0


def _is_marked(lines: list[str], number: int) -> bool:
    """Whether the next line that is not empty is marked as quoted."""
    return next((line for line in lines[number : number + 5] if line.strip()), ">").startswith(">")
