"""`/metrics` of a process without a web server: `Metrics(listen="127.0.0.1:9464")`.

It answers `GET /metrics` and nothing else, to anyone who can reach the port. Without a host, only
this machine can.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from perdure.errors import BadArgument
from perdure.observe import prometheus
from perdure.observe.registry import Family

HOST = "127.0.0.1"
POLL = 0.1
"""Maximum seconds that closing takes."""


class MetricsServer:
    """Serves what `source.collect()` gives, in threads of its own."""

    def __init__(self, source: Any, listen: str) -> None:
        """`listen` is a port, or host:port. Raises `BadArgument` if that cannot be listened at."""
        host, _, port = listen.rpartition(":")

        class Handler(_Handler):
            collect = source.collect

        try:
            self._server = ThreadingHTTPServer((host.strip("[]") or HOST, int(port)), Handler)
        except (OSError, ValueError, OverflowError) as error:
            why = error if isinstance(error, OSError) else "that is not a port"
            raise BadArgument(
                f"Metrics cannot be served at {listen!r}: {why}. Use host:port, such as "
                f"{HOST}:9464, with a port that is free."
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.address = f"http://{host or HOST}:{self.port}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL,), name="perdure-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    collect: Any
    timeout = 10.0

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        families: list[Family] = self.collect()
        body = prometheus.render(families).encode()
        self.send_response(200)
        self.send_header("Content-Type", prometheus.CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Scrapes are not logged."""
