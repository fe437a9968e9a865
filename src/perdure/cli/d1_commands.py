"""`perdure d1 init` and `perdure d1 doctor`: the Worker in front of a D1 database.

`init` writes a folder for Cloudflare's `wrangler`. A wrangler.jsonc that is there stays as it is,
but for what an option changes. Killed in the middle, it has written some of the files, and writes
the others when it is called again.
"""

from __future__ import annotations

import json as jsonlib
import os
import re
import secrets
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from typer import Argument, Exit, Option

from perdure.cli.options import Json
from perdure.cli.output import paint, print_json
from perdure.cli.target import one_place
from perdure.errors import BadArgument
from perdure.text import printable

CONFIG = "wrangler.jsonc"
SETTINGS = {
    "worker": r'("name": )(".*?")',
    "database": r'("database_name": )(".*?")',
    "database_id": r'("database_id": )(".*?")',
    "tick_url": r'("TICK_URL": )(".*?")',
    "cron": r'("crons": )(\[.*?\])',
}
"""Where a setting is in wrangler.jsonc: what is before it, and its value in JSON."""
NAMES = {"worker": "[a-z0-9][a-z0-9-]{0,62}", "database": "[A-Za-z0-9][A-Za-z0-9_-]{0,62}"}
TO_FILL_IN = "FILL IN"
"""Begins a setting that has no value yet."""
STYLES = {"ok": "green", "failed": "red", "note": "yellow"}


def init(
    folder: Annotated[
        Path,
        Argument(
            metavar="FOLDER", help="Folder to write to; created if missing.", show_default=False
        ),
    ],
    worker: Annotated[
        str | None, Option(metavar="NAME", help="Name of the Worker.", show_default="perdure")
    ] = None,
    database: Annotated[
        str | None, Option(metavar="NAME", help="Name of the database.", show_default="perdure")
    ] = None,
    cron: Annotated[
        list[str] | None,
        Option(
            metavar="LINE",
            help="When the Worker ticks, in UTC; repeatable.",
            show_default="*/5 * * * *",
        ),
    ] = None,
    tick_url: Annotated[
        str | None,
        Option(metavar="URL", help="/cron/tick of your Python host. Without it the cron is idle."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite files that differ.")] = False,
) -> None:
    """Write the Worker of a D1 journal.

    Writes worker.js, wrangler.jsonc and a README, and prints the commands that deploy them. Until
    wrangler.jsonc has its database_id, it also prints a new secret, which is not stored anywhere.
    Nothing is sent over the network. Run it again after you upgrade perdure: wrangler.jsonc is
    kept, except for what an option changes. If a file differs from what would be written, nothing
    is written without --force.
    """
    given = {"worker": worker, "database": database, "cron": cron or None, "tick_url": tick_url}
    config = _read(folder / CONFIG) or _packaged(CONFIG)
    settings = _settings(folder / CONFIG, config)
    settings |= {name: one for name, one in given.items() if one is not None}
    _check(settings)
    wanted = {
        "worker.js": _packaged("worker.js"),
        CONFIG: _configured(config, settings),
        "README.md": _packaged("README.md")
        .replace("DATABASE", settings["database"])
        .replace("WORKER", settings["worker"]),
    }
    differing = [name for name, text in wanted.items() if _read(folder / name) not in (None, text)]
    if differing and not force:
        raise BadArgument(
            f"{', '.join(differing)} in {folder} differs from what would be written. Pass --force "
            "to overwrite it. In wrangler.jsonc only what you pass as an option is changed."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            state = "unchanged" if _read(folder / name) == text else "written"
            if state == "written":
                (folder / name).write_text(text, encoding="utf-8")
            print(f"{state:9}  {folder / name}")
    except OSError as error:
        raise BadArgument(f"{folder} cannot be written: {error.strerror}.") from error
    print(_next_steps(folder, settings))


def _settings(file: Path, text: str) -> dict[str, Any]:
    """The settings of a wrangler.jsonc."""
    found = {}
    for name, pattern in SETTINGS.items():
        places = re.findall(pattern, text)
        if len(places) != 1:
            key = pattern.split('"')[1]
            raise BadArgument(
                f'{file} has "{key}" {len(places)} times, not once. Mend it by hand, or pass '
                "another folder, and carry your changes over."
            )
        found[name] = jsonlib.loads(places[0][1])
    return found


def _check(settings: dict[str, Any]) -> None:
    for name, pattern in NAMES.items():
        if not re.fullmatch(pattern, settings[name]):
            raise BadArgument(
                f"--{name} {settings[name]!r} is not a name that Cloudflare takes. Use letters, "
                "digits and hyphens, up to 63; a Worker's are lower-case."
            )
    for line in settings["cron"]:
        if len(line.split()) != 5:
            raise BadArgument(f"--cron {line!r} does not have five fields. Write '*/5 * * * *'.")
    address = urlsplit(settings["tick_url"])
    is_safe = address.scheme == "https" and address.hostname and "@" not in address.netloc
    if settings["tick_url"] and not is_safe:
        raise BadArgument(
            "--tick-url is the address of /cron/tick on your Python host, such as "
            "https://agents.example.com/cron/tick; https, because a secret is sent there, and "
            "without a user, because the secret is TICK_SECRET."
        )


def _configured(text: str, settings: dict[str, Any]) -> str:
    """A wrangler.jsonc with these settings, and everything else in it as it is."""
    for setting, pattern in SETTINGS.items():
        [[before, old]] = re.findall(pattern, text)
        if jsonlib.loads(old) != settings[setting]:
            text = text.replace(before + old, before + jsonlib.dumps(settings[setting]))
    return text.replace("create perdure     ", f"create {settings['database']:11} ")


def _packaged(name: str) -> str:
    return (files("perdure") / "cloudflare" / name).read_text(encoding="utf-8")


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadArgument(f"{file} cannot be read: {error}.") from error


def _next_steps(folder: Path, settings: dict[str, Any]) -> str:
    worker, database = settings["worker"], settings["database"]
    if not settings["database_id"].startswith(TO_FILL_IN):
        return f"""
Next, in {folder}:
  npx wrangler deploy
The database and the secrets stay as they are. `perdure d1 doctor` checks the result."""
    return f"""
A new secret, shown once and stored nowhere: {secrets.token_urlsafe(32)}

Next, in {folder}:
  npx wrangler d1 create {database}
      Decline its offer to edit {CONFIG}. Put the database_id it prints there yourself.
  npx wrangler secret put PERDURE_SECRET
      Paste the secret.
  npx wrangler secret put TICK_SECRET
      Only for the cron: the PERDURE_CRON_SECRET of your Python host.
  npx wrangler deploy
On your Python host, with the address that `deploy` prints and the secret:
  export PERDURE_URL=d1://{worker}.YOUR-SUBDOMAIN.workers.dev/ PERDURE_D1_SECRET=...
  perdure d1 doctor"""


def doctor(
    url: Annotated[
        str | None, Argument(metavar="URL", help="URL of the journal.", show_default="PERDURE_URL")
    ] = None,
    at: Annotated[str | None, Option("--at", "-a", metavar="URL", help="The same as URL.")] = None,
    json: Json = False,
) -> None:
    """Check a D1 database and its Worker.

    Prints a line for each check: ok, failed with what to do, or note. Exits with 1 if one failed.
    It makes about 25 requests and changes nothing. The secret is never printed. `perdure doctor`
    checks the journal itself. The checks:

    \b
    address      the address answers, the secret is right, the protocol matches
    schema       version of the journal's schema, or that there is no journal yet
    latency      median and worst of 10 round trips
    clock        difference from this host's clock; more than 30 s fails
    transaction  a batch that fails leaves nothing behind
    statements   a batch with the most statements that perdure sends
    value        a blob of the largest size that perdure sends
    parameters   a statement with the most parameters that perdure sends
    integers     integers over 2^53 come back exactly
    columns      two columns with the same name stay separate
    cron         the last tick of the Worker's cron; a failed one fails
    size         size of the database; over 9 GB fails
    """
    from perdure.cli.d1_checks import checks

    place = one_place(url, at) or os.environ.get("PERDURE_URL", "")
    if not place.lower().startswith("d1:"):
        raise BadArgument(
            "Which D1 database? Pass its URL, d1://:SECRET@host/, or set PERDURE_URL and "
            "PERDURE_D1_SECRET. A Worker at https://host/ is d1://host/. `perdure doctor` checks "
            "a journal on any database."
        )
    failed = 0
    for check in checks(place):
        failed += check.result == "failed"
        if json:
            print_json(check._asdict())
        else:
            result = paint(f"{check.result:6}", STYLES[check.result])
            print(f"{result}  {check.check:11}  {printable(check.detail)}", flush=True)
    if failed:
        raise Exit(1)
