"""The tests of LangGraph that are expected to fail on perdure, and why: `differences.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "compatibility.md"
FILE = Path(__file__).parent / "differences.toml"


@dataclass(frozen=True)
class Difference:
    """One reason, and the tests that fail because of it. `sometimes`: they may pass."""

    reason: str
    both: tuple[str, ...] = ()
    saver: tuple[str, ...] = ()
    bound: tuple[str, ...] = ()
    sometimes: bool = False

    def of(self, part: str) -> tuple[str, ...]:
        return (*self.both, *(self.saver if part == "saver" else self.bound))


def load() -> list[Difference]:
    """What the file says."""
    found = tomllib.loads(FILE.read_text())["difference"]
    return [_difference(one) for one in found]


def _difference(entry: dict[str, Any]) -> Difference:
    parts = {part: tuple(entry.get(part, ())) for part in ("both", "saver", "bound")}
    return Difference(entry["reason"], **parts, sometimes=entry.get("sometimes", False))


def render(differences: list[Difference]) -> str:
    """The table of the docs."""
    lines = ["| tests | with the saver | bound | why |", "|---|---|---|---|"]
    for one in differences:
        names = sorted({*one.of("saver"), *one.of("bound")})
        tests = "<br>".join(f"`{name.partition('::')[2]}`" for name in names)
        cells = [str(len(one.of(part)) or "–") for part in ("saver", "bound")]
        lines.append(f"| {tests} | {' | '.join(cells)} | {one.reason} |")
    return "\n".join(lines)


def replace_block(page: str, name: str, text: str) -> str:
    """A page with what is between two marks replaced."""
    pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
    changed, count = re.subn(pattern, lambda found: f"{found[1]}{text}{found[2]}", page, flags=re.S)
    if count != 1:
        raise ValueError(f"The page has {count} blocks {name!r}, not one.")
    return changed
