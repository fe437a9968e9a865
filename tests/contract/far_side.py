"""A far side with bad manners: a shop with orders over HTTP, `python -m tests.contract.far_side`.

It is a process of its own on loopback, and prints its port. What it did is in its own ledger, which
no crash of ours can take. How it treats a request is drawn from its seed, the order and how often
that order came: it may lose the reply, commit later, say 500 before or after it did it, be given
the order twice by the network, answer too late, or refuse. After a few bad turns it is polite.

    POST /<kind>/<order>    with an Idempotency-Key: the order is done, once per key for "keyed"
    GET /verify/<order>     the same key: 200 with the receipt, 404, or 409 while it is in progress
    GET /ledger             everything it did, what it knows of, and what is still to be done

Requests are read one after the other, in the order in which their connections came: what a client
sent before it died is known here before the next one asks about it.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

LATE = 0.15
"""Seconds until a commit that comes later."""
SLOW = 0.8
"""Seconds until an answer that comes too late."""
TIMEOUT = 0.4
"""What a client waits for one."""
BAD_TURNS = 3
"""So often an order is treated badly at most."""

ANY = ("polite", "lost", "late", "500 after", "500 before", "slow", "refuse")
MANNERS = {"keyed": (*ANY, "twice"), "verify": ANY, "hold": ANY}
"""A network that delivers a request twice to somebody who honours no key has done it twice: no
client can prevent that, or see it. So only the kind that honours keys is treated like that."""


class Shop:
    """What it did, and how it behaves."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lock = threading.Lock()
        self.did: list[dict[str, str]] = []
        """Every commit: kind, order, key and receipt."""
        self._receipts: dict[str, str] = {}
        """By key, of the kind that honours keys and of the kind that can be asked."""
        self._pending: Counter[str] = Counter()
        """By key: commits that are still to come."""
        self._turns: Counter[str] = Counter()
        self.manners: Counter[str] = Counter()

    def manner(self, kind: str, order: str) -> str:
        with self._lock:
            turn = self._turns[order]
            self._turns[order] += 1
        rng = random.Random(f"{self._seed} {order} {turn}")
        manner = "polite" if turn >= BAD_TURNS else rng.choice(MANNERS[kind])
        self.manners[manner] += 1
        return manner

    def commit(self, kind: str, order: str, key: str) -> str:
        """Do the order, and give the receipt."""
        with self._lock:
            if kind == "keyed" and key in self._receipts:
                return self._receipts[key]
            receipt = f"receipt {len(self.did)} of {order}"
            self.did.append({"kind": kind, "order": order, "key": key, "receipt": receipt})
            self._receipts[key] = receipt
            return receipt

    def commit_later(self, kind: str, order: str, key: str) -> None:
        with self._lock:
            self._pending[key] += 1

        def commit() -> None:
            self.commit(kind, order, key)
            with self._lock:
                self._pending[key] -= 1

        threading.Timer(LATE, commit).start()

    def look_up(self, key: str) -> tuple[int, str]:
        with self._lock:
            if self._pending[key]:
                return 409, "in progress"
            if key in self._receipts:
                return 200, self._receipts[key]
            return 404, "unknown"

    def ledger(self) -> dict[str, Any]:
        with self._lock:
            pending = sum(self._pending.values())
            return {"did": self.did, "pending": pending, "manners": dict(self.manners)}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        shop = self.server.shop
        _, kind, order = self.path.split("/", 2)
        key = self.headers["Idempotency-Key"]
        self.rfile.read(int(self.headers["Content-Length"]))
        manner = shop.manner(kind, order)
        if manner == "refuse":
            return self._answer(422, "no such thing today")
        if manner == "500 before":
            return self._answer(500, "out of paper")
        if manner == "late":
            return shop.commit_later(kind, order, key)
        receipt = shop.commit(kind, order, key)
        if manner == "twice":
            receipt = shop.commit(kind, order, key)
        if manner == "500 after":
            return self._answer(500, "the printer is on fire")
        if manner == "slow":
            return self.server.answer_later(self.connection, receipt)
        if manner != "lost":
            self._answer(200, receipt)
        return None

    def do_GET(self) -> None:
        shop = self.server.shop
        if self.path == "/ledger":
            return self._answer(200, json.dumps(shop.ledger()))
        return self._answer(*shop.look_up(self.headers["Idempotency-Key"]))

    def _answer(self, status: int, text: str) -> None:
        with contextlib.suppress(OSError):  # whoever asked may be dead
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(HTTPServer):
    """One request at a time, so that they are known in the order in which they came."""

    request_queue_size = 128

    def __init__(self, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shop = Shop(seed)
        self._later: set[Any] = set()

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        request.settimeout(10)
        return request, address

    def answer_later(self, connection: Any, text: str) -> None:
        self._later.add(connection)

        def answer() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + text.encode())
            self._later.discard(connection)
            super(Server, self).shutdown_request(connection)

        threading.Timer(SLOW, answer).start()

    def shutdown_request(self, request: Any) -> None:
        if request not in self._later:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody died in the middle of a request."""


# -- the client


class FarSide:
    """Whoever orders."""

    def __init__(self, port: int) -> None:
        self.port = port

    def _ask(self, method: str, path: str, key: str = "", timeout: float = 10.0) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            body = b"please" if method == "POST" else None
            connection.request(method, path, body, {"Idempotency-Key": key})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def order(self, kind: str, order: str, key: str) -> tuple[int, str]:
        """Raises when there is no answer, or none in time."""
        return self._ask("POST", f"/{kind}/{order}", key, 5.0)

    def look_up(self, order: str, key: str) -> tuple[int, str]:
        return self._ask("GET", f"/verify/{order}", key)

    def ledger(self) -> dict[str, Any]:
        """What it did, once nothing is to come any more."""
        deadline = time.monotonic() + 30
        while True:
            found: dict[str, Any] = json.loads(self._ask("GET", "/ledger")[1])
            if not found["pending"]:
                return found
            assert time.monotonic() < deadline, "it does not come to rest"
            time.sleep(0.02)


@contextlib.contextmanager
def far_side(seed: int) -> Iterator[FarSide]:
    """A far side that is there until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.far_side", "--seed", str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield FarSide(int(process.stdout.readline()))
    finally:
        process.terminate()
        process.communicate(timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    server = Server(parser.parse_args().seed)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
