"""The writer's own words in a mail, without what it quotes."""

from __future__ import annotations

import re

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
"""The line above what is quoted."""
_SENDER = re.compile(r"\*?(From|Von|De|Da|Van) ?:\*? .*@.*", re.I)
_DATED = re.compile(
    r"\*?(Sent|Date|Gesendet|Datum|Envoyé|Date d.envoi|Enviado|Fecha|Inviato|Verzonden) ?:", re.I
)


def spoken(text: str) -> str:
    """The writer's own words.

    Left out are lines that begin with `>`, an `On … wrote:`, the signature, and all that is below
    the line, or the headers, which Outlook puts above what it quotes. What follows an `On … wrote:`
    without any `>` is quoted, too, if there is something before it.
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
    """Whether the headers of a mail that is quoted below them begin here."""
    if not _SENDER.fullmatch(lines[number].strip()[:1000]):
        return False
    return any(_DATED.match(line.strip()) for line in lines[number + 1 : number + 4])


def _attribution(lines: list[str]) -> int:
    """How many lines an `On … wrote:` takes that begins here; 0 if none does."""
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
