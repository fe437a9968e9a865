"""The checks of `perdure d1 doctor`.

They leave nothing behind, wherever the process is killed. Most only read. One writes a table in a
batch that is refused at its end, one makes and drops a table in the same batch: a batch is one
transaction. The first of the two checks that it is, so it cleans up if it is not.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from perdure.errors import Error
from perdure.journal import version
from perdure.journal.d1 import D1, FRAGMENTS
from perdure.journal.d1_client import PROTOCOL, D1Client, D1Error
from perdure.journal.d1_values import CHUNK, Call, quoted, unquoted
from perdure.journal.migrate import migrations
from perdure.journal.operation import Ambiguous, Refused
from perdure.views.formatting import age

DEADLINE = 10.0
ROUND_TRIPS = 10
CLOCK_TOLERANCE = 30.0
QUIET_CRON = 3600.0
"""Seconds without a tick after which it is worth a note."""
LARGEST_DATABASE = 10_000_000_000
STATEMENTS = (D1.capabilities.statements_per_batch or 0) + 1
"""The largest batch of the journal, with its guard."""
PARAMETERS = D1.capabilities.parameters_per_statement or 0
WIDE = (2**53 + 1, 2**63 - 1, -(2**63))


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
    try:
        client = D1Client(url, deadline=DEADLINE)
    except Error as error:
        yield Check("address", "failed", str(error))
        return
    with contextlib.closing(client):
        first = _run("address", functools.partial(_address, client))
        yield first
        if first.result == "failed":
            return
        yield _run("schema", functools.partial(_schema, url))
        for name, check in _CHECKS.items():
            yield _run(name, functools.partial(check, client))


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", check())
    except Remark as remark:
        return Check(name, "note", str(remark))
    except (Failed, Error, D1Error, Refused, Ambiguous) as error:
        return Check(name, "failed", str(error))


def _rows(client: D1Client, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
    """The rows of a statement whose columns are all quoted."""
    [rows] = client.read([Call(sql, params)])
    return [tuple(map(unquoted, row)) for row in rows]


def _address(client: D1Client) -> str:
    status = client.status()
    _rows(client, "SELECT quote(1) AS c0")
    if status.get("protocol") != PROTOCOL:
        raise Failed(
            f"the Worker speaks protocol {status.get('protocol')}, and this perdure {PROTOCOL}. "
            "Deploy the Worker of this perdure: `perdure d1 init FOLDER --force`, then `npx "
            "wrangler deploy`; or update perdure, if the Worker is newer."
        )
    return f"{client.place} answers, with protocol {PROTOCOL}"


def _schema(url: str) -> str:
    newest = max(migrations())
    found = version(url)  # raises for one that is newer
    if found is None:
        raise Remark("there is no journal yet. Its first use makes it, or `perdure migrate`")
    if found < newest:
        raise Remark(f"{found}; this perdure needs {newest}. Its first use migrates it")
    return f"{found}, the newest"


def _latency(client: D1Client) -> str:
    times = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        _rows(client, "SELECT quote(1) AS c0")
        times.append((time.perf_counter() - began) * 1000)
    return (
        f"median {statistics.median(times):,.0f} ms, worst {max(times):,.0f} ms of "
        f"{ROUND_TRIPS} round trips"
    )


def _clock(client: D1Client) -> str:
    began = time.time()
    [[there]] = _rows(client, f"SELECT quote({FRAGMENTS['clock']}) AS c0")
    ahead = there / 1000 - (began + time.time()) / 2
    words = (
        f"the database's is {abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    )
    if abs(ahead) > CLOCK_TOLERANCE:
        raise Failed(
            f"{words}. Runs go by the database's. Times that your code takes from this host are "
            "off by as much: set its clock, by NTP."
        )
    return words


def _transaction(client: D1Client) -> str:
    table = _scratch_table()
    calls = [
        Call(f"CREATE TABLE {table} (n INTEGER NOT NULL)"),
        Call(f"INSERT INTO {table} VALUES (NULL)"),  # noqa: S608 (our own name)
    ]
    try:
        client.read(calls)
    except Refused:
        pass
    except D1Error as error:
        raise Failed(f"a guard that refuses is not recognised: {error}. {_REPORT}") from error
    else:
        client.read([Call(f"DROP TABLE IF EXISTS {table}")])
        raise Failed(f"a guard does not refuse. {_REPORT}")
    left = _rows(client, "SELECT quote(name) AS c0 FROM sqlite_master WHERE name = ?", [table])
    if left:
        client.read([Call(f"DROP TABLE IF EXISTS {table}")])
        raise Failed(
            "a batch is not one transaction: the first half of one that failed was kept. Do not "
            "use this address for a journal; use the Worker of `perdure d1 init`."
        )
    return "a batch is one: nothing is left of one that failed"


_REPORT = "Do not use this address for a journal, and please report it."


def _statements(client: D1Client) -> str:
    try:
        client.read([Call("SELECT quote(?) AS c0", [n]) for n in range(STATEMENTS)])
    except (Error, D1Error) as error:
        raise Failed(
            f"{STATEMENTS} statements in one batch: {error}. Workers Free takes 50: a journal "
            "needs Workers Paid."
        ) from error
    return f"{STATEMENTS} in one batch"


def _value(client: D1Client) -> str:
    table, blob = _scratch_table(), secrets.token_bytes(CHUNK)
    calls = [
        Call(f"CREATE TABLE {table} (body BLOB)"),
        Call(f"INSERT INTO {table} VALUES (?)", [blob]),  # noqa: S608 (our own name)
        Call(f"SELECT quote(body) AS c0 FROM {table}"),  # noqa: S608 (the same)
        Call(f"DROP TABLE {table}"),
    ]
    [[found]] = client.read(calls)[2]
    if unquoted(found) != blob:
        raise Failed(f"a blob of {CHUNK:,} bytes came back changed. {_REPORT}")
    return f"a blob of {CHUNK:,} bytes goes into a row and comes back"


def _parameters(client: D1Client) -> str:
    marks = ", ".join("?" * PARAMETERS)
    _rows(client, f"SELECT quote(1 IN ({marks})) AS c0", range(PARAMETERS))
    return f"{PARAMETERS} in one statement"


def _integers(client: D1Client) -> str:
    [found] = _rows(client, "SELECT quote(?) AS c0, quote(?) AS c1, quote(?) AS c2", WIDE)
    if found != WIDE:
        raise Failed(f"integers over 2^53 come back changed, {found}. {_REPORT}")
    return "those over 2^53 come back exactly"


def _columns(client: D1Client) -> str:
    found = _rows(client, quoted("SELECT a.n, b.n FROM (SELECT 1 AS n) AS a, (SELECT 2 AS n) AS b"))
    if found != [(1, 2)]:
        raise Failed(f"two columns of one name come back as {found}. {_REPORT}")
    return "two of one name stay two"


def _cron(client: D1Client) -> str:
    try:
        found = _rows(client, "SELECT quote(result) AS c0 FROM perdure_cron")
    except D1Error as error:
        if "no such table" not in str(error):
            raise
        found = []
    if not found:
        raise Remark("it has not ticked yet. It does once TICK_URL is set in wrangler.jsonc")
    last = json.loads(found[0][0])
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


def _size(client: D1Client) -> str:
    size = client.usage.database_bytes
    words = f"{size / 1_000_000:,.1f} MB, of 10 GB at most (500 MB on Workers Free)"
    if size > 0.9 * LARGEST_DATABASE:
        raise Failed(f"{words}. Delete what ended: `perdure prune --older-than 30d`")
    return words


def _scratch_table() -> str:
    return f"perdure_doctor_{secrets.token_hex(6)}"


_CHECKS: dict[str, Callable[[D1Client], str]] = {
    "latency": _latency,
    "clock": _clock,
    "transaction": _transaction,
    "statements": _statements,
    "value": _value,
    "parameters": _parameters,
    "integers": _integers,
    "columns": _columns,
    "cron": _cron,
    "size": _size,
}
