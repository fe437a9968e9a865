"""The website the agent reads: 48 pages on a local HTTP server that remembers every request.

40 pages are about the lighthouses of a coast that does not exist, 8 about other things. `/search`
lists the pages whose title has a word. A request is counted when it arrives, before it is answered,
with the `Idempotency-Key` it brought.
"""

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COASTS = ("North", "East", "South", "West")
FIRST = ["Amber", "Black", "Cold", "Dun", "Elder", "Far", "Grey", "Hollow", "Iron", "Kestrel"]
SECOND = ["Head", "Point", "Ness", "Rock"]
OTHER = ["harbours", "tides", "charts", "wrecks", "gulls", "ferries", "buoys", "storms"]


def _lighthouse(coast: str, name: str, chance: random.Random) -> str:
    height, range_ = chance.randrange(14, 62), chance.randrange(9, 28)
    return (
        f"{name} stands on the {coast} coast. It was first lit in {chance.randrange(1740, 1910)}. "
        f"The tower is {height} metres tall and its light is seen for {range_} miles."
    )


def _pages() -> dict[str, tuple[str, str]]:
    chance = random.Random(1)
    pages = {}
    for second, coast in zip(SECOND, COASTS, strict=True):
        for first in FIRST:
            name = f"{first} {second}"
            path = f"/{coast}/{name}".lower().replace(" ", "-")
            pages[path] = f"{name} lighthouse", _lighthouse(coast, name, chance)
    for topic in OTHER:
        pages[f"/other/{topic}"] = f"A history of {topic}", f"There have always been {topic}."
    return pages


PAGES = _pages()
"""By path: title and text."""


@dataclass
class Site:
    """What the server saw."""

    url: str
    seconds: float
    """How long an answer takes."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """By path: the key of each request for a page, in order."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counted(self) -> Counter[str]:
        """How often each key came."""
        with self.lock:
            return Counter(key for keys in self.keys.values() for key in keys)

    def answer(self, url: str, key: str) -> str | None:
        at = urlsplit(url)
        if at.path == "/search":
            word = parse_qs(at.query)["q"][0]
            found = [
                {"title": title, "url": self.url + path}
                for path, (title, _) in PAGES.items()
                if word in title
            ]
            return json.dumps(found)
        if at.path not in PAGES:
            return None
        with self.lock:
            self.keys.setdefault(at.path, []).append(key)
        time.sleep(self.seconds)
        return "\n\n".join(PAGES[at.path])


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        text = self.server.site.answer(self.path, self.headers.get("Idempotency-Key", ""))
        body = (text or "There is no such page.").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.site = Site(f"http://127.0.0.1:{self.server_port}", seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who asked was killed: as it should
            super().handle_error(request, client_address)


@contextmanager
def serve(seconds: float = 0.0) -> Iterator[Site]:
    """The website on a free port of this machine, for as long as the block runs."""
    with _Server(seconds) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.site
        finally:
            server.shutdown()
            thread.join()
