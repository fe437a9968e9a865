"""Which server has the newest history of a PostgreSQL database, as far as this process knows.

Each promotion of a standby begins a *timeline* with a higher number. So a connection is compared
with the newest place that this process has seen or had a commit acknowledged at:

    an older timeline              refused: it is a ghost, an old primary that nothing stopped
    a newer one, another server,   compared with what was acknowledged, and then used, or
    or an earlier place            `WentBack` is raised first

A pooler may reach another server between two transactions, so each batch is refused by its first
statement (`Place.mark`) unless its timeline is the one of its connection. What an old primary
acknowledges after that counts as unknown.

A URL with several hosts has no one who says which of them is the primary: libpq takes the first
that accepts writes, and a ghost does. There a thread looks at all of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from perdure.errors import WentBack
from perdure.journal.operation import Ambiguous, Read
from perdure.journal.postgres_errors import ELSEWHERE, Outdated
from perdure.journal.went_back import Acknowledged

LOOK = 2.0
"""Seconds between two looks at the hosts of a URL, and for which one may take to answer."""

PLACE = """
SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
       CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
       CASE WHEN NOT pg_is_in_recovery()
            THEN CAST(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS BIGINT) END
FROM pg_control_system()
"""


class Place(NamedTuple):
    """Where a server is in the history of a database."""

    server: str
    """The cluster and the database."""
    timeline: str
    """As names of WAL files have it: a later one sorts after an earlier one."""
    position: int
    """The end of its WAL."""

    @property
    def mark(self) -> str:
        """The first statement of each batch that writes. It writes to the WAL, so that a batch that
        changes nothing waits for the synchronous standby, too: what it read, and acknowledges, is
        replicated then. It gives the position, and refuses a server with another timeline."""
        return (
            "SELECT CAST(pg_wal_lsn_diff(pg_logical_emit_message(true, 'perdure', ''), '0/0') "
            "AS BIGINT), CASE WHEN left(pg_walfile_name(pg_current_wal_lsn()), 8) = "
            f"'{self.timeline}' THEN 0 ELSE CAST(concat('{ELSEWHERE}') AS BIGINT) END"
        )


class History:
    """The newest place of a database that this process knows."""

    def __init__(self, acknowledged: Acknowledged) -> None:
        self._acknowledged = acknowledged
        self._newest: Place | None = None
        self._latest = ""
        """The newest timeline of its cluster that any host has."""
        self._lock = threading.RLock()

    def reopen(self) -> None:
        """Continue in a forked process: a thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def is_outdated(self, place: Place) -> bool:
        """Whether a server with this timeline is an old primary."""
        newest = self._newest
        is_same = newest is None or newest.server == place.server
        return is_same and place.timeline < max(self._latest, newest.timeline if newest else "")

    @property
    def position(self) -> int:
        """The last commit that was acknowledged."""
        return self._newest.position if self._newest else 0

    def admit(self, place: Place, position: int, read: Read) -> None:
        """Decide whether a new connection is used; `position` is that of this history when it was
        begun. Raises `Outdated` and `WentBack`."""
        with self._lock:
            if self.is_outdated(place):
                raise Outdated(
                    f"the server is on timeline {int(place.timeline, 16)}, and another one is on "
                    f"timeline {int(max(self._latest, self._newest_timeline), 16)}: it is an old "
                    "primary that was replaced. If a backup was restored on purpose, restart this "
                    "process"
                )
            try:
                why, is_certain = self._why_older(place, position)
                if why:
                    self._acknowledged.compare(read, why, is_certain=is_certain)
            except WentBack:
                self._newest = None
                raise
            finally:
                known = self._newest
                if known is None or known[:2] != place[:2]:
                    # The end of its WAL may not be on disk: only what is acknowledged counts.
                    self._newest = place._replace(position=0)

    @property
    def _newest_timeline(self) -> str:
        return self._newest.timeline if self._newest else ""

    def _why_older(self, place: Place, position: int) -> tuple[str, bool]:
        """Why a server may lack what was acknowledged, and whether it certainly does."""
        known = self._newest
        if known is None:
            return "", False
        if place.server != known.server:
            return "another database answers at its URL", False
        if place.timeline != known.timeline:
            timelines = int(known.timeline, 16), int(place.timeline, 16)
            return "its primary changed, from timeline {} to {}".format(*timelines), False
        if place.position < min(position, known.position):
            return "its log ends before the last commit that was acknowledged", True
        return "", False

    def acknowledge(self, place: Place, position: int) -> None:
        """Note a commit. Raises `Ambiguous` if its server is known to be an old primary by now."""
        with self._lock:
            newest = self._newest
            if self.is_outdated(place):
                raise Ambiguous("it was committed by an old primary")
            if newest is not None and newest[:2] == place[:2] and position > newest.position:
                self._newest = newest._replace(position=position)

    def saw(self, place: Place) -> bool:
        """Note that a host has a timeline. True: it is newer than any before."""
        with self._lock:
            is_mine = self._newest is None or place.server == self._newest.server
            if not is_mine or place.timeline <= max(self._latest, self._newest_timeline):
                return False
            self._latest = place.timeline
            return True


def hosts_of(url: str) -> list[dict[str, str]]:
    """The hosts of a URL with several of them, each with its port."""
    parameters = conninfo_to_dict(url)
    hosts = str(parameters.get("host") or os.environ.get("PGHOST", "")).split(",")
    ports = str(parameters.get("port") or os.environ.get("PGPORT", "")).split(",")
    if len(hosts) < 2 or parameters.get("hostaddr"):
        return []
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [
        {"host": host, **({"port": port} if port else {})}
        for host, port in zip(hosts, ports, strict=False)
    ]


class Hosts:
    """Looks at the hosts of a URL for the primary with the newest timeline."""

    def __init__(
        self,
        url: str,
        history: History,
        connect: Callable[..., Any],
        cut: Callable[[], None],
    ) -> None:
        """`connect` makes a connection with these parameters beside the URL, and `cut` ends those
        to old primaries."""
        self._history, self._connect, self._cut = history, connect, cut
        self._hosts = hosts_of(url)
        self._connections: dict[str, Any] = {}
        self._looking = threading.Lock()
        self._primary: dict[str, str] = {}
        self._has_looked = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def primary(self) -> dict[str, str]:
        """The host and port to connect to; nothing: let libpq find one."""
        if self._hosts and not self._has_looked:
            self.look()
        return self._primary

    def forget_primary(self) -> None:
        """It did not answer: let libpq find one, until the next look."""
        self._primary = {}

    def watch(self) -> None:
        """Look again and again, in a thread."""
        if self._hosts and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="perdure-hosts", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK):
            with contextlib.suppress(Exception):
                self.look()
        self._close()

    def look(self) -> None:
        """Look at every host once."""
        with self._looking:
            places = [(place, host) for host in self._hosts if (place := self._place_of(host))]
            self._has_looked = True
            if not places:
                return
            newest, host = max(places, key=lambda one: one[0].timeline)
            if self._history.saw(newest):
                self._cut()
            if not self._history.is_outdated(newest):
                self._primary = host

    def _place_of(self, host: dict[str, str]) -> Place | None:
        """The place of a host, if it is a primary and answers."""
        name = f"{host['host']}:{host.get('port', '')}"
        try:
            connection = self._connections.get(name)
            if connection is None or connection.closed:
                any_state = {"target_session_attrs": "any", "connect_timeout": int(LOOK)}
                connection = self._connections[name] = self._connect(**host, **any_state)
            connection.give_up = time.monotonic() + LOOK
            server, timeline, position = connection.execute(PLACE).fetchall()[0]
        except psycopg.Error:
            if (broken := self._connections.pop(name, None)) is not None:
                broken.close()
            return None
        return None if timeline is None else Place(server, timeline, position)

    def close(self) -> None:
        self._ended.set()
        if self._thread is None:
            self._close()

    def _close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()


def hang_up(connection: psycopg.Connection[Any]) -> None:
    """End a connection that another thread may be waiting for."""
    with contextlib.suppress(OSError, psycopg.Error):
        one = socket.socket(fileno=os.dup(connection.pgconn.socket))
        with one:
            one.shutdown(socket.SHUT_RDWR)
