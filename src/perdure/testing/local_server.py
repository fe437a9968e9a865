"""What the servers that tests start have in common: a port, a log and one process."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PATIENCE = 60.0  # seconds a start or a stop may take on a slow machine


def free_port() -> int:
    """A free port below the range from which systems pick the near end of outgoing connections.

    A client that keeps trying to reach a stopped server inside that range may connect to itself.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No free TCP port between 20000 and 32000 on 127.0.0.1.")


class LocalServer:
    """A server on loopback, at the same address whenever it is started."""

    def __init__(self, command: list[str], log: Path, port: int, **options: Any) -> None:
        self.port = port
        self._command, self._log, self._options = command, log, options
        self._process: subprocess.Popen[bytes] | None = None

    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def _launch(
        self, stdin: int, stdout: int | None = None, *, env: Mapping[str, str]
    ) -> IO[bytes] | None:
        """Start the process. Returns its standard output, if that is a pipe."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C is for the tests, not for the server
                **self._options,
            )
        return self._process.stdout

    def _end(self, how: signal.Signals) -> None:
        """Send a signal and wait for the end, which SIGKILL brings if nothing else does."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        with self._process:  # closes its pipes and waits
            pass
        self._process = None

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
