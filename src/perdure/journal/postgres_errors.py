"""What an error of PostgreSQL, or of a pooler before it, means for the journal: one table for
opening, batches, reads, transactions and the commands.

The server's code (SQLSTATE) decides; messages are in the server's language. libpq does not pass on
the code of a connection that was refused: there the English text is looked for, and any other
reason counts as one that may pass.
"""

from __future__ import annotations

import re
from enum import StrEnum

import psycopg

GUARD = "perdure refuses this batch"
"""In the message of a guard, in any language: the text that it casts to a number."""


ELSEWHERE = "perdure began this batch on another server"
"""The same for the first statement of each batch: a pooler went to another server."""


class Meaning(StrEnum):
    """What to do about an error."""

    LOST = "lost"
    """The connection is gone, and whether a COMMIT on it was done is unknown."""
    UNDONE = "undone"
    """The server undid the batch for a reason that may be gone the next time."""
    AWAY = "away"
    """Nothing was written, and this server cannot do it now: a new connection may reach one that
    can."""
    ELSEWHERE = "elsewhere"
    """The first statement of the batch refused the server: a new connection is compared with it."""
    DENIED = "denied"
    """Nothing was written. The database, its tables or the role have to be changed first."""
    REFUSED = "refused"
    """A guard of perdure's own statements refused the batch."""
    MISTAKE = "mistake"
    """The statement is at fault."""


class Standby(psycopg.OperationalError):
    """The server is a standby: it accepts no writes until it is promoted."""


class Outdated(psycopg.OperationalError):
    """The server is an old primary: another one has a newer timeline."""


class Unfit(psycopg.OperationalError):
    """The server or the role is set so that it cannot be a journal. The message says what to do."""


_BY_CODE = {
    "08": Meaning.LOST,  # connection exception; also what PgBouncer says of most things
    "0A000": Meaning.AWAY,  # "cannot set transaction read-write mode during recovery"; a stale plan
    "25006": Meaning.AWAY,  # a standby, or a server that was set read-only
    "25P03": Meaning.LOST,  # idle_in_transaction_session_timeout
    "25P04": Meaning.LOST,  # transaction_timeout
    "26000": Meaning.AWAY,  # a prepared statement that is not on this connection
    "28": Meaning.DENIED,  # password, pg_hba.conf
    "3D000": Meaning.DENIED,  # no such database
    "3F000": Meaning.DENIED,  # no such schema
    "40": Meaning.UNDONE,  # serialization, deadlock
    "42501": Meaning.DENIED,  # no permission
    "42703": Meaning.DENIED,  # no such column: an older backup was restored
    "42P01": Meaning.DENIED,  # no such table
    "42P05": Meaning.AWAY,  # a prepared statement that another client left on this connection
    "53": Meaning.AWAY,  # connections, memory, disk
    "55": Meaning.AWAY,  # lock_timeout, an object that is in use
    "57": Meaning.AWAY,  # statement_timeout, a query that was cancelled
    "57P": Meaning.LOST,  # shutting down, starting up, the database was dropped
    "58": Meaning.AWAY,  # I/O
    "XX": Meaning.AWAY,  # the server's own fault; what hosted poolers say
}
_OF_A_FUNCTION = frozenset({"0A000", "26000", "28", "3D000", "3F000", "42501", "42703", "42P01"})
"""Those that, in a transactional effect, are as likely a mistake in a statement of its function."""
_NO_CONNECTION = re.compile(
    "password authentication failed|no password supplied|pg_hba.conf|authentication method"
    "|does not exist|no such (database|user)|not permitted to log in|permission denied"
    "|unrecognized configuration parameter|invalid value for parameter|unsupported startup"
    "|SSL, but SSL was required|certificate verify failed|invalid .* value:"
    "|SASL authentication failed|Tenant or user not found"
)
"""In the message of a connection that is refused until a person changes something."""


def meaning(error: psycopg.Error, *, of_function: bool = False) -> Meaning:
    """What an error of a statement means. `of_function`: it may be a statement of an effect's."""
    if isinstance(error, (Standby, Outdated)):
        return Meaning.AWAY
    if isinstance(error, Unfit):
        return Meaning.DENIED
    code = error.sqlstate
    if code is None:
        # Without a code it is the connection's end, or psycopg refuses what it is given.
        return Meaning.LOST if isinstance(error, psycopg.OperationalError) else Meaning.MISTAKE
    if code == "22P02" and GUARD in str(error):
        return Meaning.REFUSED
    if code == "22P02" and ELSEWHERE in str(error):
        return Meaning.ELSEWHERE
    for length in (5, 3, 2):
        if (what := _BY_CODE.get(code[:length])) is not None:
            at_fault = of_function and not _OF_A_FUNCTION.isdisjoint((code, code[:2]))
            return Meaning.MISTAKE if at_fault else what
    return Meaning.MISTAKE


def may_pass(error: psycopg.Error) -> bool:
    """Whether a connection that could not be made, or used to open the journal, may be made later,
    without a change by a person."""
    if error.sqlstate is None and not isinstance(error, (Standby, Outdated, Unfit)):
        is_answer = isinstance(error, psycopg.OperationalError)  # else libpq rejects the URL
        return is_answer and not _NO_CONNECTION.search(str(error))
    return meaning(error) in (Meaning.LOST, Meaning.UNDONE, Meaning.AWAY)


def reason(error: psycopg.Error) -> str:
    """The server's message with its code, without details: those quote rows."""
    if error.sqlstate is None:
        return " ".join(str(error).split()).rstrip(".")
    return f"{error.diag.message_primary or error} ({error.sqlstate})"
