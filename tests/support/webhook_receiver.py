"""A receiver of webhooks on loopback that remembers what it got, and answers as it is told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.support.http import serving


class Received(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebhookReceiver:
    """What came, and how the next requests are answered."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[Received] = []
        self.answers: list[int] = []
        """Statuses of the next answers; 200 after them."""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.may_answer = threading.Event()
        """Answers are held back until it is set."""
        self.may_answer.set()

    def answer(self, request: Received) -> int:
        self.got.append(request)
        assert self.may_answer.wait(60)
        return self.answers.pop(0) if self.answers else 200


@contextlib.contextmanager
def receiving() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.answer(Received(self.path, headers, body))
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(receiver.body)))
                self.end_headers()
                self.wfile.write(receiver.body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        receiver.url = url
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
