"""Ports for the servers that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port below the range from which systems pick the near end of outgoing connections.

    A client that keeps trying to reach a stopped server inside that range may connect to itself.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No free TCP port between 20000 and 32000 on 127.0.0.1.")
