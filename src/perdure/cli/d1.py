"""`perdure d1 init` writes the Worker in front of a D1 database; `perdure d1 doctor` checks both.

`init` writes a folder for Cloudflare's `wrangler`. A wrangler.jsonc that is there is the user's and
stays as it is. Killed in the middle, it has written some of the files, and writes the others when
it is called again. `doctor` only reads.
"""

from __future__ import annotations

import json as jsonlib
import os
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from click.exceptions import Exit

from perdure.cli.options import Lines, Parameter
from perdure.cli.output import paint, print_json
from perdure.errors import BadArgument, Error
from perdure.text import printable
from perdure.views.formatting import age

if TYPE_CHECKING:
    from perdure.d1 import Client

CONFIG = "wrangler.jsonc"
STYLES = {"ok": "green", "failed": "red", "note": "yellow"}

DEADLINE = 10.0
ROUND_TRIPS = 10
CLOCK_TOLERANCE = 30.0
QUIET_CRON = 3600.0
"""Seconds without a tick after which it is worth a note."""
LARGEST_DATABASE = 10_000_000_000
STATEMENTS, PARAMETERS, BLOB = 901, 100, 900_000
"""The largest batch of a journal, with its guard; the most parameters of a statement; the largest
blob of a row, in bytes."""


def init(folder: Path, *, force: bool = False) -> None:
    """Write the Worker of a D1 journal.

    Writes worker.js, wrangler.jsonc and a README, and prints the commands that deploy them. The
    first time it also prints a new secret, which is not stored anywhere. Nothing is sent over the
    network. Run it again after you upgrade perdure: a wrangler.jsonc that exists is yours, so only
    worker.js is written then. A file that differs from what would be written is only overwritten
    with --force.

    Args:
        folder: Folder to write to; created if missing.
        force: Overwrite files that differ.
    """
    is_new = not (folder / CONFIG).exists()
    names = ("worker.js", CONFIG, "README.md") if is_new else ("worker.js",)
    wanted = {name: _packaged(name) for name in names}
    try:
        differing = [name for name, text in wanted.items() if _differs(folder / name, text)]
        if differing and not force:
            raise BadArgument(
                f"{', '.join(differing)} in {folder} differs from what would be written. Pass "
                "--force to overwrite it."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"written    {folder / name}")
    except (OSError, ValueError) as error:
        raise BadArgument(f"{folder} cannot be written: {error}.") from error
    print(_first_steps(folder) if is_new else _next_steps(folder))


def _packaged(name: str) -> str:
    return (files("perdure") / "cloudflare" / name).read_text(encoding="utf-8")


def _differs(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") != text


def _next_steps(folder: Path) -> str:
    return f"""
Next, in {folder}:
  npx wrangler deploy
The database and the secrets stay as they are. `perdure d1 doctor` checks the result."""


def _first_steps(folder: Path) -> str:
    return f"""
A new secret, shown once and stored nowhere: {secrets.token_urlsafe(32)}

Next, in {folder}:
  npx wrangler d1 create perdure
      Decline its offer to edit {CONFIG}. Put the database_id it prints there yourself.
  npx wrangler secret put PERDURE_SECRET
      Paste the secret.
  npx wrangler secret put TICK_SECRET
      Only for the cron: the PERDURE_CRON_SECRET of your Python host. Put the address of its
      /cron/tick into {CONFIG}, as TICK_URL.
  npx wrangler deploy
On your Python host, with the address that `deploy` prints and the secret:
  export PERDURE_URL=d1://perdure.YOUR-SUBDOMAIN.workers.dev/ PERDURE_D1_SECRET=...
  perdure d1 doctor"""


def doctor(
    at: Annotated[str | None, Parameter("URL of the journal.", "URL", ("--at", "-a"))] = None,
    *,
    json: Lines = False,
) -> None:
    """Check a D1 database and its Worker.

    Prints a line for each check: ok, failed with what to do, or note. Exits with 1 if one failed.
    It makes about 15 requests and changes nothing. The secret is never printed. `perdure doctor`
    checks the journal itself. The checks:

    \b
    address      the address answers, the secret is right, the protocol matches
    schema       version of the journal's schema, or that there is no journal yet
    latency      median and worst of 10 round trips
    clock        difference from this host's clock; more than 30 s fails
    limits       the largest batch that perdure sends
    cron         the last tick of the Worker's cron; a failed one fails
    size         size of the database; over 9 GB fails
    """
    place = at or os.environ.get("PERDURE_URL", "")
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


class Check(NamedTuple):
    """One line of the doctor's."""

    check: str
    result: str
    """ok, failed, or note."""
    detail: str


class Failed(Exception):
    """A check failed: why, and what to do."""


class Remark(Exception):
    """Nothing failed, and something is worth knowing."""


def checks(url: str) -> Iterator[Check]:
    """Check the database at `url`, one thing after the other. Stops if it cannot be reached."""
    from perdure.d1 import Client

    try:
        client = Client(url, deadline=DEADLINE)
    except Error as error:
        yield Check("address", "failed", str(error))
        return
    with client:
        first = _run("address", lambda: _address(client))
        yield first
        if first.result == "failed":
            return
        yield _run("schema", lambda: _schema(url))
        for check in (_latency, _clock, _limits, _cron, _size):
            yield _run(check.__name__[1:], partial(check, client))


def _run(name: str, check: Callable[[], str]) -> Check:
    from perdure.d1 import D1Error

    try:
        return Check(name, "ok", check())
    except Remark as remark:
        return Check(name, "note", str(remark))
    except (Failed, Error, D1Error) as error:
        return Check(name, "failed", str(error))


def _read(client: Client, sql: str) -> list[Any]:
    """The first column of a statement's rows."""
    [rows] = client.batch([(sql, ())], idempotent=True)
    return [row[0] for row in rows]


def _address(client: Client) -> str:
    from perdure.d1 import PROTOCOL

    status = client.status()
    _read(client, "SELECT 1 AS n")
    if status.get("protocol") != PROTOCOL:
        raise Failed(
            f"the Worker speaks protocol {status.get('protocol')}, and this perdure {PROTOCOL}. "
            "Deploy the Worker of this perdure: `perdure d1 init FOLDER --force`, then `npx "
            "wrangler deploy`; or update perdure, if the Worker is newer."
        )
    return f"{client.place} answers, with protocol {PROTOCOL}"


def _schema(url: str) -> str:
    from perdure.client import Client

    client = Client(url)
    found, newest = client.schema_version(), client.newest_schema()  # raises for one that is newer
    if found is None:
        raise Remark("there is no journal yet. Its first use makes it, or `perdure migrate`")
    if found < newest:
        raise Remark(f"{found}; this version of perdure needs {newest}. Its first use migrates it")
    return f"{found}, the newest"


def _latency(client: Client) -> str:
    times = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        _read(client, "SELECT 1 AS n")
        times.append((time.perf_counter() - began) * 1000)
    return (
        f"median {statistics.median(times):,.0f} ms, worst {max(times):,.0f} ms of "
        f"{ROUND_TRIPS} round trips"
    )


def _clock(client: Client) -> str:
    began = time.time()
    [days] = _read(client, "SELECT julianday('now') AS days")
    ahead = (days - 2440587.5) * 86400 - (began + time.time()) / 2
    words = (
        f"the database's is {abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    )
    if abs(ahead) > CLOCK_TOLERANCE:
        raise Failed(
            f"{words}. Runs go by the database's. Times that your code takes from this host are "
            "off by as much: set its clock, by NTP."
        )
    return words


def _limits(client: Client) -> str:
    many = (f"SELECT 1 IN ({', '.join('?' * PARAMETERS)}) AS n", range(PARAMETERS))
    large = ("SELECT length(?) AS n", [bytes(BLOB)])
    words = f"{STATEMENTS} statements, {PARAMETERS} parameters and a blob of {BLOB:,} bytes"
    try:
        found = client.batch(
            [many, large, *[("SELECT 1 AS n", ())] * (STATEMENTS - 2)], idempotent=True
        )
    except Exception as error:
        raise Failed(
            f"{words} in one batch: {error}. Workers Free takes 50 statements: a journal needs "
            "Workers Paid."
        ) from error
    if found[1] != [(BLOB,)]:
        raise Failed(f"a blob of {BLOB:,} bytes arrived as {found[1]}. Please report it.")
    return f"{words} in one batch"


def _cron(client: Client) -> str:
    from perdure.d1 import D1Error

    try:
        found = _read(client, "SELECT result FROM perdure_cron")
    except D1Error as error:
        if "no such table" not in str(error):
            raise
        found = []
    if not found:
        raise Remark("it has not ticked yet. It does once TICK_URL is set in wrangler.jsonc")
    last = jsonlib.loads(found[0])
    ticked = datetime.fromisoformat(last["time"])
    ago = f"{age(ticked, datetime.now(UTC))} ago"
    if last["error"]:
        raise Failed(
            f"the tick {ago} failed at attempt {last['tries']}: {last['error'].rstrip('.')}. Check "
            "TICK_URL in wrangler.jsonc, that your host answers there, and that TICK_SECRET is its "
            "PERDURE_CRON_SECRET."
        )
    words = f"ticked {ago}: {last['body']}"
    if (datetime.now(UTC) - ticked).total_seconds() > QUIET_CRON:
        raise Remark(f"{words}. If it should have ticked since, see the Worker's cron events")
    return words


def _size(client: Client) -> str:
    from perdure.d1 import TOTAL

    size = TOTAL.database_bytes
    words = f"{size / 1_000_000:,.1f} MB, of 10 GB at most (500 MB on Workers Free)"
    if size > 0.9 * LARGEST_DATABASE:
        raise Failed(f"{words}. Delete what ended: `perdure prune --older-than 30d`")
    return words
