"""The author's own words in a mail, without quotations.

Mail programs mark quotations in many ways, or not at all. But what they quote is mostly our own
mail, and we know its text: it is left out wherever it stands, in any language and with any marks.
Quotations from others are recognised by their marks alone.

Takes time in proportion to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

FOOTER = "To get no more of these mails, {link}answer with the one word stop."
"""The footer of our mails; `letter.footer` fills it in."""
_FOOTERS = [FOOTER.format(link=""), FOOTER.format(link="open or ")]

_LEAST = 6
"""Minimum words in a row, from the start of a sentence of ours, that count as a quotation. Fewer
may be the author's own: a lone "stop" is, although our footer has it too."""
_MOST = 10
"""Maximum sentences of ours with the same beginning that are compared."""
_WORD = re.compile(r"\w+://[^\s<>]*+|[^\W_]++")
_STARTS = re.compile(r"[\n.!?]")
_CUT = "\x00"

_DIVIDER = re.compile(
    r"-{2,} ?(Original Message|Forwarded message|Ursprüngliche Nachricht|Weitergeleitete Nachricht"
    r"|Message d.origine|Mensaje original|Messaggio originale|Oorspronkelijk bericht) ?-{2,}"
    r"|Begin forwarded message:",
    re.I,
)
_LINE = re.compile(r"_{20,}")
"""Outlook has it above the headers of a quoted mail. A banner may have one as well."""
_LABEL = re.compile(r"\*?[^\W\d_][\w .'\u2019-]{0,20} ?:\*? *\S")
_SENDER = re.compile(r"\*?(From|Von|De|Da|Van|Från|Fra|Od|Lähettäjä|От) ?:", re.I)
_DATED = re.compile(
    r"\*?(Sent|Date|Gesendet|Datum|Envoyé|Date d.envoi|Enviado|Fecha|Inviato|Verzonden|Skickat) ?:",
    re.I,
)
_YEAR = re.compile(r"\b20\d\d\b")

_ATTRIBUTION = re.compile(
    r"On .*\bwrote ?:|Am .*\bschrieb\b.*:|Le .*\ba écrit ?:|El .*\bescribió ?:|Il .*\bha scritto ?:"
    r"|Em .*\bescreveu ?:|Op .*\bschreef\b.*:"
)
"""The line above a quotation."""
_BEGINNINGS = ("On ", "Am ", "Le ", "El ", "Il ", "Em ", "Op ")
_ADDRESSED = re.compile(r"< ?[^\s<>@]{1,200}@[^\s<>@]{1,200}>")
_WROTE = re.compile(_ADDRESSED.pattern + r"( [^\s:]{1,20}){0,2} ?:")
_TIME = re.compile(r"\d[:.h]\d\d")
_WRAPPED = 30
"""Minimum characters of a line that a mail program has wrapped."""


def spoken(text: str, ours: Iterable[str] = ()) -> str:
    """The author's own words. `ours` has the texts that we wrote; our footer is always known.

    Leaves out our texts, lines that begin with `>`, an `On … wrote:`, the signature, and everything
    below the line, or the headers, that Outlook puts above a quotation. Text that follows an
    `On … wrote:` without any `>` is also quoted, if there is text before it.
    """
    lines = _without(text, [*ours, *_FOOTERS])
    kept: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number].strip()
        if lines[number] in ("--", "-- ") or _begins_a_mail(lines, number):
            break
        length = _attribution(lines[number : number + 3])
        if length and any(kept) and not _is_marked(lines, number + length):
            break
        if not length and not line.startswith(">"):
            kept.append(lines[number].rstrip())
        number += length or 1
    return "\n".join(kept).strip()


# -- what we wrote


def _without(text: str, ours: list[str]) -> list[str]:
    """The lines of a text without our words, and without lines that have no others."""
    text = "\n".join(text.replace(_CUT, "").splitlines())
    pieces, end = [], 0
    for start, stop in _runs(text, ours):
        pieces += [text[end:start], _CUT, "\n" + _CUT if "\n" in text[start:stop] else ""]
        end = stop
    lines = "".join([*pieces, text[end:]]).split("\n")
    rests = [line.replace(_CUT, "") if _CUT in line else None for line in lines]
    return [
        line if rest is None else rest
        for line, rest in zip(lines, rests, strict=True)
        if rest is None or _WORD.search(rest) or rest.lstrip().startswith(">")
    ]


def _runs(text: str, ours: list[str]) -> Iterator[tuple[int, int]]:
    """The start and end of each quotation from our texts."""
    found = [one for one in _WORD.finditer(text) if "://" not in one[0]]
    words = [one[0].casefold() for one in found]
    places = _places(ours)
    number = 0
    while number + _LEAST <= len(words):
        begun = places.get(tuple(words[number : number + _LEAST]), ())
        length = max((_alike(words, number, *place) for place in begun), default=0)
        if length:
            yield found[number].start(), found[number + length - 1].end()
        number += length or 1


def _places(ours: list[str]) -> dict[tuple[str, ...], list[tuple[list[str], int]]]:
    """Our sentences by their first words: the words of the text, and where the sentence begins."""
    places: dict[tuple[str, ...], list[tuple[list[str], int]]] = {}
    for text in ours:
        found = [one for one in _WORD.finditer(text) if "://" not in one[0]]
        words, end = [one[0].casefold() for one in found], 0
        for number, one in enumerate(found[: 1 - _LEAST]):
            if number == 0 or _STARTS.search(text, end, one.start()):
                begun = places.setdefault(tuple(words[number : number + _LEAST]), [])
                begun += [(words, number)] if len(begun) < _MOST else []
            end = one.end()
    return places


def _alike(words: list[str], number: int, ours: list[str], begin: int) -> int:
    """Number of equal words from here on."""
    most = min(len(words) - number, len(ours) - begin)
    same = (n for n in range(most) if words[number + n] != ours[begin + n])
    return next(same, most)


# -- what others wrote


def _begins_a_mail(lines: list[str], number: int) -> bool:
    """Whether a quoted mail begins here, with a line above it or with its headers."""
    line = lines[number].strip()
    if _LINE.fullmatch(line):
        near = range(number + 1, min(number + 4, len(lines)))
        below = next((n for n in near if lines[n].strip()), None)
        return below is not None and bool(
            _SENDER.match(lines[below].strip()) or _headers(lines, below)
        )
    return bool(_DIVIDER.fullmatch(line)) or _headers(lines, number)


def _headers(lines: list[str], number: int) -> bool:
    """Whether the headers of a quoted mail begin here.

    In any language the first has an address, and one of the next has a year.
    """
    first = lines[number].strip()[:1000]
    below = [line.strip()[:1000] for line in lines[number + 1 : number + 4]]
    if _SENDER.match(first) and any(map(_DATED.match, below)):
        return True
    is_sender = _LABEL.match(first) and _ADDRESSED.search(first)
    return bool(is_sender) and any(_LABEL.match(one) and _YEAR.search(one) for one in below)


def _attribution(lines: list[str]) -> int:
    """Number of lines of an `On … wrote:` that begins here; 0 if none does."""
    for count, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(">"):
            break
        if _attributes(lines[:count]):
            begins_later = any(_attributes(lines[n:count]) for n in range(1, count))
            return 0 if begins_later else count
    return 0


def _attributes(lines: list[str]) -> bool:
    """Whether these lines together are one `On … wrote:`.

    In any language it has a time and an address, and ends with a colon. Only a long one is wrapped.
    The quotation may follow it on the same line.
    """
    said = " ".join(" ".join(line[:500] for line in lines).split())
    if said.endswith(":") and said.startswith(_BEGINNINGS) and _ATTRIBUTION.fullmatch(said):
        return True
    if "@" not in said or (len(lines) > 1 and len(lines[0].strip()) < _WRAPPED):
        return False
    wrote = _WROTE.search(said)
    if wrote and _TIME.search(said, 0, wrote.start()):
        return True
    return said.endswith(":") and bool(_ADDRESSED.search(said) and _TIME.search(said))


def _is_marked(lines: list[str], number: int) -> bool:
    """Whether the next line that is not empty is marked as quoted."""
    return next((line for line in lines[number : number + 5] if line.strip()), ">").startswith(">")
