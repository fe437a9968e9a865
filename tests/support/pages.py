"""The fenced blocks of a page of the docs."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

_OPEN = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)")
_COMMENT = re.compile(r"<!--\s*(?P<word>no-run|output)(?::\s*(?P<reason>.*?))?\s*-->")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, with the comment on the line before it."""

    page: Path
    line: int  # where its first line of content stands, counted from 1
    language: str
    text: str
    comment: str | None
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def compile(self) -> CodeType:
        """Compile it so that a traceback names the page and its line."""
        source = "\n" * (self.line - 1) + self.text
        code: CodeType = compile(
            source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        return code


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    before, number = "", 0
    while number < len(lines):
        line = lines[number]
        number += 1
        opening = _OPEN.match(line)
        if opening is None:
            before = line or before  # a blank line may stand between a comment and its block
            continue
        closing = re.compile(rf" *{opening['fence']}\s*$")
        start = number
        while number < len(lines) and not closing.match(lines[number]):
            number += 1
        assert number < len(lines), f"{page.name}:{start}: this block is never closed"
        comment = _COMMENT.search(before)
        yield Block(
            page,
            start + 1,
            opening["language"],
            textwrap.dedent("\n".join(lines[start:number]) + "\n"),
            comment["word"] if comment else None,
            comment["reason"] if comment else None,
        )
        before, number = "", number + 1
