"""Hooks of MkDocs: links of our pages to files outside docs/ work on the site too.

A Markdown file that a page links to, such as ARCHITECTURE.md, becomes a page below project/; any
other file becomes a page below source/ that shows its text. `tests/test_x.py#name` leads to the
line that defines the name; a name that is not defined there is a warning. In the reference, a
class, error or function that is named in code style links to its entry.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
log = get_plugin_logger("links")

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ATTRIBUTE = re.compile(r'\b(src|srcset|href)="([^"]+)"')
_NAMED = re.compile(r"<code>(perdure\.\w+|[A-Z]\w+(?:\.\w+)?)(\(\))?</code>(?!</a>|</autoref>)")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_LANGUAGES = {".py": "python", ".sql": "sql", ".toml": "toml", ".json": "json", ".js": "js"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that a page links to, directly or through another."""
    pages = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    for page in pages:  # grows while it is read
        for target in _targets(page):
            uri = _uri(target)
            if target.is_file() and files.get_file_from_path(uri) is None:
                text = target.read_text(encoding="utf-8")
                if target.suffix == ".md":
                    pages.append(target)
                elif target.suffix in (".svg", ".webp", ".png"):
                    continue
                else:
                    text = _as_page(target, text)
                files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to the pages that `on_files` added."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    own = ROOT / (uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        full = (own.parent / path).resolve()
        if full.is_dir():
            return label
        if not full.is_file() or not full.is_relative_to(ROOT):
            return match[0]  # MkDocs warns
        found = _relative(_uri(full), uri)
        if not _uri(full).startswith("source/"):
            return f"[{label}]({found}{'#' + anchor if anchor else ''})"
        href = f"{found.removesuffix('.md')}.html"
        if anchor:
            href += f"#__codelineno-0-{_line_of(anchor, full, uri)}"
        text = re.sub(r"`([^`]+)`", lambda code: f"<code>{escape(code[1])}</code>", label)
        return f'<a href="{href}">{text}</a>'

    def attribute(match: re.Match[str]) -> str:
        name, target = match.groups()
        full = (own.parent / target).resolve()
        if "://" in target or not full.is_file() or own.is_relative_to(ROOT / "docs"):
            return match[0]
        return f'{name}="{_relative(_uri(full), uri)}"'

    def both(text: str) -> str:
        return _ATTRIBUTE.sub(attribute, _LINK.sub(link, text))

    return _outside_fences(markdown, both)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link names in the reference to their entries. A name without an entry stays as it is."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    module = Path(page.file.src_uri).stem

    def link(match: re.Match[str]) -> str:
        name, _, member = match[1].partition(".")
        if name == "perdure":
            entry = match[1]
        elif name in _homes():  # fields have no entries of their own
            entry = f"{_homes()[name]}.{name}"
        else:
            home = "perdure" if name in ("Client", "Runtime", "Saver") else f"perdure.{module}"
            entry = f"{home}.{name}.{member}".removesuffix(".")
        return f'<autoref identifier="{entry}" optional>{match[0]}</autoref>'

    return _NAMED.sub(link, html.replace("_NOTHING", "..."))  # a default that means: none given


@cache
def _homes() -> dict[str, str]:
    """The modules of values and errors."""
    homes: dict[str, str] = {}
    for module in ("types", "errors"):
        source = (ROOT / "src" / "perdure" / f"{module}.py").read_text(encoding="utf-8")
        homes |= dict.fromkeys(_CLASS.findall(source), f"perdure.{module}")
    return homes


def _targets(page: Path) -> list[Path]:
    found: list[Path] = []

    def note(text: str) -> str:
        for _, target in _LINK.findall(text):
            path = target.partition("#")[0]
            full = (page.parent / path).resolve()
            if path and "://" not in path and full.is_relative_to(ROOT):
                found.append(full)
        return text

    _outside_fences(page.read_text(encoding="utf-8"), note)
    return [one for one in found if not one.is_relative_to(ROOT / "docs")]


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _uri(path: Path) -> str:
    """The path of a file's page, below docs/ as MkDocs sees it."""
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith("docs/"):
        return relative.removeprefix("docs/")
    return f"project/{relative}" if path.suffix == ".md" else f"source/{relative}.md"


def _relative(uri: str, page: str) -> str:
    return posixpath.relpath(uri, posixpath.dirname(page) or ".")


def _as_page(path: Path, text: str) -> str:
    name = path.relative_to(ROOT).as_posix()
    language = _LANGUAGES.get(path.suffix, "text")
    head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# {path.name}\n\n`{name}`\n\n"
    return f'{head}~~~~~ {{ .{language} linenums="1" }}\n{text.rstrip()}\n~~~~~\n'


def _line_of(name: str, path: Path, page: str) -> int:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if re.match(rf"\s*(?:(?:async )?def |class )?{re.escape(name)}\b", line):
            return number
    log.warning("%s links to %s in %s, which does not define it.", page, name, path.name)
    return 1
