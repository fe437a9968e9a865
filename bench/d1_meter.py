"""What goes over the wire to D1, counted in the same way for every contender."""

from __future__ import annotations

import json
import struct
import threading
import time
from dataclasses import astuple, dataclass
from urllib.parse import urlsplit

from perdure.testing.d1 import Workerd
from tests.support.proxy import FaultyProxy, Reply

DISTANCE = 0.02
"""Seconds that a request is held back, as by a data centre that is away: what a saver batches
depends on how long a request takes."""


@dataclass(frozen=True, slots=True)
class Used:
    """Of D1: HTTP requests, the rows it counts, bytes of bodies."""

    requests: float = 0
    read: float = 0
    written: float = 0
    sent: float = 0
    received: float = 0

    def __add__(self, other: Used) -> Used:
        return Used(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Used) -> Used:
        return self + other.times(-1)

    def times(self, factor: float) -> Used:
        return Used(*(one * factor for one in astuple(self)))


class Meter(FaultyProxy):
    """Stands before workerd, and counts what is asked of it."""

    def __init__(self, server: Workerd) -> None:
        super().__init__(server.url(0))
        self._behind, self.port = server.port, urlsplit(self.url).port
        self.used = Used()
        self._counting = threading.Lock()

    def through(self, url: str) -> str:
        """The same database, through this meter."""
        return url.replace(f":{self._behind}/", f":{self.port}/")

    def forwarded(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        time.sleep(DISTANCE)
        reply = super().forwarded(method, path, headers, body)
        read, written = _rows(reply.body, urlsplit(path).path)
        with self._counting:
            self.used += Used(1, read, written, len(body), len(reply.body))
        return reply


def _rows(reply: bytes, path: str) -> tuple[int, int]:
    """Rows read and written, as D1 reports them to each of the two ways in."""
    if path.endswith("/v1/batch"):
        [length] = struct.unpack_from(">I", reply)
        head = json.loads(reply[4 : 4 + length])
        return head.get("read", 0), head.get("written", 0)
    results = json.loads(reply).get("result") or []
    metas = [one["meta"] for one in results]
    return sum(m["rows_read"] for m in metas), sum(m["rows_written"] for m in metas)
