"""A CSV file of contacts: the contacts, and what is wrong with the other lines.

Nothing here knows the database. What gets through can be put into the headers of a mail: an address
has one spelling, and no text has a character that could end a line, or decodes to another text (RFC
2047: `=?utf-8?q?Bo?=` is Bo).
"""

from __future__ import annotations

import csv
import difflib
import functools
import hashlib
import io
import re
import unicodedata
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

COLUMNS = {
    "address": ("email", "emailaddress", "mail", "address"),
    "name": ("name", "fullname"),
    "company": ("company", "organisation", "organization"),
    "zone": ("zone", "timezone", "tz"),
}
"""Names of each column; case, spaces, `-` and `_` do not matter. If a file has two of them, the
first one here counts."""

_ATOM = r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = re.compile(rf"{_ATOM}(\.{_ATOM})*")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ENCODED = re.compile(r"=\?.*\?=")
_TWO_READINGS = set("ß\N{GREEK SMALL LETTER FINAL SIGMA}\u200c\u200d")


class BadSheet(ValueError):
    """A file that cannot be read as a sheet of contacts."""


class NoAddressColumn(BadSheet):
    """A file whose first line has no column of addresses."""


@dataclass(frozen=True)
class Line:
    """A contact, and the line of the file on which it begins."""

    number: int
    address: str
    name: str
    company: str
    zone: str
    has_zone: bool = field(default=True, compare=False)
    """Whether the file names the zone; else it is the default."""


@dataclass(frozen=True)
class Bad:
    """A line that is not a contact, or names one that must not be written to, and why."""

    number: int
    reason: str


@dataclass(frozen=True)
class Sheet:
    """A file that was read."""

    rows: list[Line]
    bad: list[Bad]
    ignored_columns: list[str]


def read(source: Path | bytes | str, *, zone: str = "UTC") -> Sheet:
    """Read a file, or the text of one. A line without a zone gets the one given here.

    Columns are found by name, in any order, and end at a comma, a semicolon or a tab. Raises
    `BadSheet` if the file cannot be read; lines with problems go into `bad`.
    """
    if zone not in _zones():
        raise BadSheet(f"The default zone cannot be used: {_no_zone(zone)}.")
    text = _text(source)
    mark = max(",;\t", key=lambda mark: len(next(_records(text, mark), _NOTHING).cells))
    records = _records(text, mark)
    first = next(records, _NOTHING)
    if first.problem:
        raise BadSheet(f"The first line names the columns, but {first.problem}.")
    header = [cell.strip() for cell in first.cells]
    places = _places(header)
    ignored = [name for n, name in enumerate(header) if name and n not in places.values()]
    sheet = Sheet([], [], ignored)
    seen: dict[str, int] = {}
    for record in records:
        cells = record.cells + [""] * len(header)
        line, reasons = _judge(record.number, {what: cells[n] for what, n in places.items()}, zone)
        if line.address in seen:
            reasons.append(f"{line.address} is already on line {seen[line.address]}")
        if any(cell.strip() for cell in record.cells[len(header) :]):
            reasons = [f"it has {len(record.cells)} columns, the first line {len(header)}"]
        if record.problem or reasons:
            swallowed = f" (it ends on line {record.end})" if record.end > record.number else ""
            reason = record.problem or "; ".join(reasons)
            sheet.bad.append(Bad(record.number, reason + swallowed))
        else:
            seen[line.address] = line.number
            sheet.rows.append(line)
    return sheet


def normalise(address: str) -> str:
    """One spelling per mailbox; raises ValueError if mail cannot be sent to it.

    The domain is case-insensitive, and written in ASCII. The local part need not be, but no mail
    provider distinguishes Ana@ from ana@, and one person must not count as two.
    """
    _refuse_control("the address", address)
    local, _, domain = address.strip().lower().rpartition("@")
    shown = repr(address.strip()[:80])
    if not address.strip():
        raise ValueError("it has no address")
    if len(address.strip()) > 254:
        raise ValueError(f"{shown}... is not an address: it is too long")
    if _TWO_READINGS & set(domain):
        raise ValueError(f"the domain of {shown} can be read in two ways; write its xn-- form")
    try:
        domain = domain.encode("idna").decode() if not domain.isascii() else domain
    except UnicodeError:
        raise ValueError(f"{shown} is not an address: there is no such domain") from None
    labels = domain.split(".")
    if not _LOCAL.fullmatch(local) or len(local) > 64 or len(local) + len(domain) > 253:
        raise ValueError(f"{shown} is not an address")
    if len(labels) < 2 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError(f"{shown} is not an address: there is no such domain")
    return f"{local}@{domain}"


def person_of(address: str) -> str:
    """The mailbox behind a normalised address: what follows a plus is a label."""
    local, _, domain = address.rpartition("@")
    return f"{local.partition('+')[0] or local}@{domain}"


def hash_of(person: str) -> str:
    """The hash that is kept of a person who must not be written to."""
    return hashlib.sha256(person.encode()).hexdigest()


def _judge(number: int, found: dict[str, str], default: str) -> tuple[Line, list[str]]:
    reasons: list[str] = []
    address, given = "", found.get("zone", "").strip()
    zone = given or default
    try:
        address = normalise(found["address"])
    except ValueError as error:
        reasons.append(str(error))
    for what in ("name", "company"):
        try:
            plain(f"the {what}", found.get(what, ""))
        except ValueError as error:
            reasons.append(str(error))
    try:
        check_zone(zone)
    except ValueError as error:
        reasons.append(str(error))
    name, company = found.get("name", "").strip(), found.get("company", "").strip()
    return Line(number, address, name, company, zone, bool(given)), reasons


def plain(what: str, text: str) -> str:
    """A name that is safe in a header. Raises ValueError if it would decode to another text."""
    _refuse_control(what, text)
    if _ENCODED.search(text):
        raise ValueError(f"{what} is encoded: {text[:80]!r}")
    return text.strip()


def check_zone(name: str) -> str:
    """The name of a time zone. Raises ValueError if there is no such zone."""
    if name not in _zones():
        raise ValueError(_no_zone(name))
    return name


def _refuse_control(what: str, text: str) -> None:
    """A line break would let a cell write headers into a mail."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs"):
            raise ValueError(f"{what} contains the character {character!r}")


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - {"localtime", "Factory"})


@functools.lru_cache
def _no_zone(name: str) -> str:
    name = name[:80]
    zones = {zone.lower(): zone for zone in sorted(_zones())}
    near = difflib.get_close_matches(name.lower().replace(" ", "_"), zones, 2, 0.75)
    hint = (
        f"; did you mean {' or '.join(zones[zone] for zone in near)}?"
        if near
        else " such as Europe/Berlin"
    )
    return f"{name!r} is not a time zone{hint}"


def _text(source: Path | bytes | str) -> str:
    content = source.read_bytes() if isinstance(source, Path) else source
    if isinstance(content, bytes) and content.startswith(b"PK"):
        raise BadSheet("The file is a workbook, or another archive. Export the sheet as CSV UTF-8.")
    try:
        text = content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        raise BadSheet(
            f"The file is not UTF-8: byte {error.start} cannot be decoded. Save it as UTF-8, which "
            "Excel calls CSV UTF-8."
        ) from None
    return text.removeprefix("\ufeff")


class _Record(NamedTuple):
    number: int
    end: int
    cells: list[str]
    problem: str


_NOTHING = _Record(1, 1, [], "")


def _records(text: str, mark: str) -> Iterator[_Record]:
    """All records that are not empty, each with its first and last line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells, problem = next(reader), ""
        except StopIteration:
            return
        except csv.Error as error:
            cells, problem = [], f"it cannot be read: {error}"
        if problem or any(cell.strip() for cell in cells):
            yield _Record(number, reader.line_num, cells, problem)


def _places(header: list[str]) -> dict[str, int]:
    names = [re.sub(r"[\s_-]", "", name).lower() for name in header]
    places: dict[str, int] = {}
    for what, called in COLUMNS.items():
        for name in called:
            if names.count(name) > 1:
                raise BadSheet(f"Two columns are called {name!r}; rename or delete one.")
            if name in names:
                places.setdefault(what, names.index(name))
    if "address" not in places:
        raise NoAddressColumn(
            "The first line has no column email, mail or address; it is: "
            f"{', '.join(map(repr, header))[:200] or 'empty'}."
        )
    return places
