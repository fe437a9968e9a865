"""`perdure prompts`: prompt versions, and which of them did better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from perdure.cli.options import At, Json
from perdure.cli.output import format_table, one_line, paint, print_json
from perdure.cli.target import client_at
from perdure.errors import BadArgument, NotFound
from perdure.views.formatting import count, difference, estimate, utc_time
from perdure.views.terminal_text import printable

if TYPE_CHECKING:
    from perdure.service.prompts import OutcomeChange
    from perdure.types import PromptRecord


def prompts(
    name: Annotated[
        str | None, Argument(metavar="NAME", help="Name of a prompt.", show_default="all")
    ] = None,
    at: At = None,
    diff: Annotated[
        tuple[str, str] | None,
        Option(
            metavar="A B",
            help="Compare two versions of NAME, each named by a prefix of its hash: texts and "
            "scores.",
        ),
    ] = None,
    html: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write a self-contained page with plots to FILE, comparing the versions of "
            "--diff or the last two.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List prompt versions with the scores they earned.

    For each score it shows the number of scores, their mean or share, and the 95 % interval. With
    --diff and --json it prints one object: `before`, `after` and `changes`.
    """
    from perdure.service.prompts import compare

    if diff and not name:
        raise BadArgument("--diff needs the NAME of the prompt.")
    with client_at(at) as client:
        found = client.blocking.prompts(name)
    if name and not found:
        raise NotFound("prompt", name)
    pair = None if diff is None else (_version(found, diff[0]), _version(found, diff[1]))
    if html is not None:
        _write_page(html, found, pair)
        return
    if pair is not None:
        changes = compare(*pair)
        if json:
            print_json({"before": pair[0], "after": pair[1], "changes": changes})
        else:
            _print_comparison(pair, changes)
        return
    for one in found:
        if json:
            print_json(one)
    if not json:
        _print_versions(found)


def _version(found: list[PromptRecord], prefix: str) -> PromptRecord:
    """The version that begins so."""
    matching = [one for one in found if one.version.startswith(prefix)]
    if len(matching) == 1:
        return matching[0]
    versions = ", ".join(one.version for one in matching or found)
    if matching:
        raise BadArgument(f"Several versions begin with {prefix!r}: {versions}.")
    raise BadArgument(f"No version begins with {prefix!r}. The versions: {versions}.")


def _write_page(
    path: str, found: list[PromptRecord], pair: tuple[PromptRecord, PromptRecord] | None
) -> None:
    from perdure.cli.output_file import output_file
    from perdure.views.prompt_page import prompt_page

    if not found:
        raise BadArgument("There is no prompt to write a page about.")
    with output_file("--html", path) as file:
        file.write(prompt_page(found, pair).encode())
    print(f"{count(len(found), 'version')} written to {path}.")


def _print_versions(found: list[PromptRecord]) -> None:
    from perdure.service.prompts import as_estimate, outcome_title

    last = None
    for one in found:
        if one.name != last:
            print(f"{'' if last is None else chr(10)}{paint(printable(one.name), 'bold')}")
            last = one.name
        print(f"  {one.version}  since {utc_time(one.first_at)}  {count(one.runs, 'run')}")
        if one.damaged:
            print(f"    {paint(one_line(one.damaged, 1000), 'red')}")
        titles = [printable(outcome_title(each.score, each.label)) for each in one.outcomes]
        width = max(map(len, titles), default=0)
        for title, each in zip(titles, one.outcomes, strict=True):
            print(f"    {title:{width}}  {estimate(as_estimate(each))}")
    if not found:
        print("No run has read a prompt. Name prompts in nodes with perdure.prompt(name, text).")


def _print_comparison(
    pair: tuple[PromptRecord, PromptRecord], changes: list[OutcomeChange]
) -> None:
    import difflib

    from perdure.views.prompt_page import verdict

    before, after = pair
    old, new = ([printable(line) for line in one.text.splitlines()] for one in pair)
    a, b = (f"{printable(one.name)} {one.version}" for one in pair)
    lines = difflib.unified_diff(old, new, a, b, lineterm="")
    styles = {"+": "green", "-": "red", "@": "dim"}
    for line in lines:
        print(paint(line, styles.get(line[:1])))
    rows = [
        (
            printable(one.title),
            estimate(one.before),
            estimate(one.after),
            difference(one.difference),
            verdict(one)[0],
        )
        for one in changes
    ]
    print()
    if rows:
        head = ("SCORE", before.version, after.version, "DIFFERENCE", "")
        print(format_table(head, rows, shrinks=(0,)))
    else:
        print("Nothing that they touched was scored.")
