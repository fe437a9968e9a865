"""The headers and the text of an incoming mail, as text that can be stored.

Whatever the mail contains, the result has no NUL and no half characters, and reading takes time in
proportion to its length.
"""

from __future__ import annotations

import re
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message

from .markup import without_tags

ADDRESS = re.compile(r"[^\s<>@]{1,200}@[^\s<>@]{1,200}")
LONGEST = 100_000
"""Maximum characters of a text; the rest is cut off."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.){0,300}+)"(@?)')
_COMMENT = re.compile(r"\([^()]{0,300}+\)")
_ANGLE = re.compile(r"<([^<>]*+)>")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


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


def addresses(mail: Message, *names: str) -> list[str]:
    """The addresses in some headers, in lower case, however malformed.

    Does not use `email.utils.getaddresses`: in newer Pythons one flaw discards the whole header.
    """
    found: list[str] = []
    for raw in (one for name in names for one in _raw(mail, name)):
        found += _addresses(_without_names(raw)) or _addresses(raw.replace('"', " "))
    return found


def _addresses(raw: str) -> list[str]:
    """The addresses between commas. An address in `<…>` wins over other words."""
    found: list[str] = []
    for one in re.split("[,;]", raw):
        texts = _ANGLE.findall(one) or one.split()
        short = (text.rpartition(":")[2].strip("\"'<>()[] ") for text in texts)
        found += [text.lower() for text in short if ADDRESS.fullmatch(text)]
    return found


def _without_names(raw: str) -> str:
    """A header without quoted names and comments, which may contain commas."""
    raw = _QUOTED.sub(lambda found: _unquoted(found[1]) + "@" if found[2] else " ", raw)
    for _ in range(5):  # comments can be nested
        raw = _COMMENT.sub(" ", raw)
    return raw


def _unquoted(local: str) -> str:
    return local if re.fullmatch(r"[^\s<>@,;:\\]*+", local) else " "


def _raw(mail: Message, name: str) -> list[str]:
    """All headers of a name, on one line each. Octets beyond ASCII are taken for UTF-8."""
    values = [str(value) for key, value in mail.raw_items() if key.lower() == name.lower()]
    octets = [value[:10_000].encode("utf-8", "surrogateescape") for value in values[:10]]
    return [" ".join(storable(one.decode("utf-8", "replace")).split()) for one in octets]


def plain(mail: Message) -> str:
    """The text of all parts of a mail, without attachments. Of alternatives it takes the first that
    is not empty, plain text before HTML."""
    return _text(mail)[:LONGEST]


def _text(part: Message) -> str:
    kind, inside = part.get_content_type(), part.get_payload()
    if part.get_content_maintype() == "multipart" and isinstance(inside, list):
        parts = [one for one in inside if isinstance(one, Message) and not _is_attached(one)]
        if kind == "multipart/alternative":
            parts.sort(key=lambda one: one.get_content_type() != "text/plain")
            return next((text for text in map(_text, parts) if text.strip()), "")
        return "\n\n".join(filter(None, (text.strip() for text in map(_text, parts))))
    if kind == "text/plain":
        return _readable(decoded(part))
    return _readable(without_tags(decoded(part))) if kind == "text/html" else ""


def _is_attached(part: Message) -> bool:
    return part.get_content_disposition() == "attachment"


def _readable(text: str) -> str:
    """A text without invisible characters, and with one kind of space."""
    return _SPACE.sub(" ", _INVISIBLE.sub("", storable(text)))


def decoded(part: Message) -> str:
    """The text of a part, whatever its encoding."""
    encoding = words(part, "Content-Transfer-Encoding")
    if encoding:  # the email package does not accept a trailing space
        part.replace_header("Content-Transfer-Encoding", encoding)
    octets = part.get_payload(decode=True)
    if not isinstance(octets, bytes):
        return ""
    try:
        text = octets.decode(part.get_content_charset() or "utf-8", "replace")
    except (LookupError, ValueError):
        text = octets.decode("utf-8", "replace")
    return storable(text)[:LONGEST]
