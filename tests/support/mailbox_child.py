"""A process that reads a mailbox, until it is killed or told to stop."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from examples.campaign.__main__ import main
from examples.campaign.app import App
from examples.campaign.database import Row
from examples.campaign.imap import Account
from examples.campaign.mailbox import Mailbox
from examples.campaign.settings import Settings
from perdure.testing import Clock
from tests.support.fork_server import Tell


def read_until_written(asked: dict[str, Any], tell: Tell) -> None:
    """Is killed when it has written once, and tells where. Returns if there is nothing to write."""
    settings = Settings(**asked["settings"])
    with App(settings, clock=Clock(datetime.fromisoformat(asked["at"]))) as app:
        write: Callable[..., list[list[Row]]] = app.database.write

        def once(*statements: Any) -> None:
            write(*statements)
            texts = " ".join(statement.text for statement in statements)
            tell("written", re.findall(r"(?:INTO|UPDATE) (messages|mailboxes)", texts)[0])
            os.kill(os.getpid(), signal.SIGKILL)

        app.database.write = once  # type: ignore[method-assign, assignment]
        Mailbox(app, Account.of(settings)).read()


def command(asked: dict[str, Any], tell: Tell) -> None:
    """`inbound --imap` with these variables. Tells its exit code."""
    os.environ.update(asked["environment"])
    sys.argv = ["campaign", "inbound", "--imap"]
    try:
        tell("code", main())
    except SystemExit as ended:
        tell("code", ended.code)
