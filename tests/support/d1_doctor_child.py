"""`perdure d1 doctor` in a process that is killed: a child of `tests.support.fork_server`."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from httpcore._sync.http11 import HTTP11Connection

from perdure.cli import d1_checks, main
from perdure.journal.d1_binding import Call
from perdure.journal.d1_client import WorkerTransport
from tests.support.fork_server import Tell


def doctor(order: dict[str, Any], tell: Tell) -> None:
    """Is killed at its `nth` request that makes a table: before it is sent, once it is sent and
    before the reply is read, or after the reply."""
    d1_checks.ROUND_TRIPS = 1
    is_here, made = False, 0
    send, receive = WorkerTransport.send, HTTP11Connection._receive_response_headers

    def die_if(when: str) -> None:
        if is_here and order["when"] == when:
            os.kill(os.getpid(), signal.SIGKILL)

    def sending(self: Any, calls: Sequence[Call]) -> Any:
        nonlocal is_here, made
        is_making = calls[0].sql.startswith("CREATE TABLE")
        made += is_making
        is_here = is_making and made == order["nth"]
        die_if("before")
        try:
            return send(self, calls)
        finally:
            die_if("after")

    def receiving(self: HTTP11Connection, **kwargs: Any) -> Any:
        die_if("sent")
        return receive(self, **kwargs)

    WorkerTransport.send = sending  # type: ignore[method-assign]
    HTTP11Connection._receive_response_headers = receiving  # type: ignore[assignment, method-assign]
    tell("ended", main(["d1", "doctor", order["url"]]), made)
