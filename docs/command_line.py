"""A hook of MkDocs: the help texts of all commands become their reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perdure.cli import SECTIONS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

GUIDES = {
    "demo": "[the campaign](../tutorials/campaign.md)",
    "dev": "[LangGraph projects](../guides/langgraph-projects.md)",
    "serve": "[serving](../guides/serving.md), [access control](../guides/access-control.md)",
    "worker": "[deploying](../guides/deploying.md)",
    "tick": "[deploying](../guides/deploying.md)",
    "inbox": "[approvals](../guides/approvals.md)",
    "answer": "[approvals](../guides/approvals.md)",
    "withdraw": "[approvals](../guides/approvals.md)",
    "assign": "[approvals](../guides/approvals.md)",
    "link": "[approvals](../guides/approvals.md)",
    "signal": "[signals](../guides/signals.md)",
    "cancel": "[effects](../guides/effects.md#undo-effects-when-a-run-is-cancelled)",
    "effects": "[effects](../guides/effects.md)",
    "settle": "[effects](../guides/effects.md)",
    "schedules": "[schedules](../guides/schedules.md)",
    "schedule": "[schedules](../guides/schedules.md)",
    "reflections": "[reflections](../guides/reflections.md)",
    "prune": "[privacy](../guides/privacy.md)",
    "erase": "[privacy](../guides/privacy.md)",
    "export": "[exporting](../guides/operating.md#export-runs)",
    "import": "[migrating](../guides/migrating.md#from-langgraphs-savers)",
    "check": "[upgrading](../guides/upgrading.md)",
    "crashtest": "[crash testing](../guides/crash-testing.md)",
    "evaluate": "[evaluating](../guides/evaluating.md)",
    "tokens create": "[access control](../guides/access-control.md)",
    "d1 init": "[Cloudflare D1](../guides/cloudflare-d1.md)",
    "d1 doctor": "[Cloudflare D1](../guides/cloudflare-d1.md)",
}
"""The guide of a command."""
SELECTION = ["state", "graph", "thread_id", "metadata", "since", "until"]
SELECTS = (
    "`--state`, `--graph`, `--thread`, `--metadata`, `--since` and `--until` select "
    "runs, as in [`perdure runs`](#perdure-runs)."
)
_CODE = re.compile(r"(?<![\w-])(?:--[a-z][a-z-]*|PERDURE_[A-Z_]+|/[a-z]+(?:/[a-z]+)*)(?![\w-])")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add every command below what people wrote."""
    is_reference = page.file.src_uri == "reference/command-line.md"
    return f"{markdown}\n\n{generated()}" if is_reference else markdown


def generated() -> str:
    """Every command, in its section."""
    parts = []
    for section, commands in SECTIONS.items():
        parts.append(f"## {section}")
        for command in commands:
            for sub, one in getattr(command, "commands", {"": command}).items():
                parts += _command(f"{command.name} {sub}".strip(), one)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(f"perdure {name}", [], resilient_parsing=True)
    yield f"### `perdure {name}`"
    yield f"```text\nperdure {name} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield from map(_paragraph, inspect.cleandoc(command.help).split("\n\n"))
    params = {one.name: one for one in command.get_params(context) if one.name != "help"}
    selects = name != "runs" and params.keys() >= {*SELECTION}
    if selects:
        params = {key: one for key, one in params.items() if key not in SELECTION}
        yield SELECTS
    if rows := list(filter(None, (_row(one, context) for one in params.values()))):
        yield "\n".join(["| | default | |", "|---|---|---|", *rows])
    if name in GUIDES:
        yield f"Guide: {GUIDES[name]}."


def _paragraph(text: str) -> str:
    if text.startswith("\b\n"):
        return f"```text\n{text[2:]}\n```"
    return _prose(" ".join(text.split()))


def _row(param: Any, context: Any) -> str:
    """The line of an argument or option. It says what `--help` does."""
    names, text = param.get_help_record(context)
    help, _, extra = text.partition("  [")
    default = _default(extra.removesuffix("]"), names)
    if param.name == "place" and help.startswith("The same as"):
        return ""
    if param.name == "at" and names.endswith(" PLACE"):
        kind = "Runtime" if help.startswith("The Runtime") else "journal"
        help, default = f"[The {kind}](#which-journal)", ""
    else:
        help = _prose(help)
    return f"| {_code(names)} | {default} | {help} |".replace("|  |", "| |")


def _default(extra: str, names: str) -> str:
    """What `--help` has in brackets: a default, an environment variable, or that it is required."""
    text = extra.removeprefix("default: ")
    if extra.startswith("env var: "):
        return f"`${extra.removeprefix('env var: ')}`"
    if not text or text == "required":
        return text
    if " / " in names:
        return f"`--{text}`"
    is_prose = text.startswith("(") and not re.search(r"[*\d]", text)
    return _prose(text[1:-1]) if is_prose else f"`{text.removeprefix('(').removesuffix(')')}`"


def _code(text: str) -> str:
    """A text as code. A bar in a table is written so that GitHub and the site both show it."""
    if "|" not in text:
        return f"`{text}`"
    plain = text.replace("<", "").replace(">", "")
    return f"<code>{plain.replace('|', '&#124;<wbr>')}</code>"


def _prose(text: str) -> str:
    """A text with its options, variables and paths as code, and nothing that Markdown reads."""
    parts = text.split("`")
    for n, part in enumerate(parts[::2]):
        part = _CODE.sub(lambda found: f"`{found[0]}`", part)
        parts[2 * n] = part.replace("|", "&#124;").replace("*", "\\*")
    return "`".join(parts)
