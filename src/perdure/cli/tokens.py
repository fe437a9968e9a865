"""`perdure tokens`: create, list and revoke tokens for the HTTP API."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Argument, Option

from perdure.cli.options import At, Json
from perdure.cli.output import format_table, print_json
from perdure.cli.target import client_at
from perdure.text import printable

HEADERS = ("NAME", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED")

Name = Annotated[str, Argument(metavar="NAME", help="A name, such as the program that uses it.")]


def create(
    name: Name,
    at: At = None,
    scope: Annotated[
        list[str] | None,
        Option(
            metavar="SCOPE",
            help="What it may do: read, start, answer or admin; at least one, repeatable.",
        ),
    ] = None,
    expires: Annotated[
        str | None, Option(metavar="90d", help="How long it is valid.", show_default="forever")
    ] = None,
    json: Json = False,
) -> None:
    """Create a token and print it.

    It cannot be shown again: the journal stores only its hash. The name of a revoked token can be
    used again. A missing journal is created.
    """
    from perdure.cli.parsing import parse_duration

    lasts = None if expires is None else parse_duration("--expires", expires)
    with client_at(at, create=True) as client:
        plan = client.services.tokens.create(name, scope or (), expires=lasts)
        token = client.journal.run(plan)
        held = client.journal.run(client.services.tokens.all())
    usable = [one for one in held if one.revoked_at is None]
    if not any("admin" in one.scopes for one in usable):
        print(
            "perdure: note: no token has the scope admin. Once there are tokens, the address that "
            "the server prints does not sign in. For yourself: perdure tokens create NAME "
            "--scope admin.",
            file=sys.stderr,
        )
    if json:
        print_json({"name": name, "token": token})
    else:
        print(token)


def list_(at: At = None, json: Json = False) -> None:
    """List tokens, including revoked ones.

    Shows name, scopes, and when each was created, expires and was last used.
    """
    from perdure.times import utc_time

    with client_at(at) as client:
        found = client.journal.run(client.services.tokens.all())
    if json:
        for one in found:
            print_json(one)
    elif found:
        rows = [
            (
                printable(one.name),
                " ".join(one.scopes),
                *(
                    "" if time is None else utc_time(time)
                    for time in (one.created_at, one.expires_at, one.used_at, one.revoked_at)
                ),
            )
            for one in found
        ]
        print(format_table(HEADERS, rows, shrinks=(0,)))
    else:
        print("There is no token. Create one: perdure tokens create NAME --scope read.")


def revoke(name: Name, at: At = None) -> None:
    """Revoke a token.

    Servers refuse it within three seconds.
    """
    with client_at(at) as client:
        client.journal.run(client.services.tokens.revoke(name))
    print(f"{printable(name)} is revoked.")
