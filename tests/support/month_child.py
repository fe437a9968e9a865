"""Processes of the campaign's month: `python -m tests.support.month_child <settings> <clock>`.

This process loads everything once and forks another for each line on its standard input, so that a
new one is there at once: `work` is a worker, `tick` a cron that drives 25 due threads, `tick 1` one
that drives them one after the other, `listen` who takes mail in. It answers with a process id.
`kill 123` ends one by SIGKILL, and `reap 123` tells whether it is `alive` or `gone`. At the end of
its input it kills all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from examples.campaign.app import App
from examples.campaign.clock import SharedClock
from examples.campaign.inbound import Inbound, Listener
from examples.campaign.settings import Settings

CONCURRENCY = 6
LIMIT = 25


def be(what: str, settings: Settings, clock: Path) -> None:
    """What a process does, until it is killed or has done it."""
    name, _, option = what.partition(" ")
    with App(settings, clock=SharedClock(clock)) as app:
        if name == "work":
            asyncio.run(app.runtime.work(concurrency=CONCURRENCY))
        elif name == "tick":
            count = int(option or CONCURRENCY)
            asyncio.run(app.runtime.tick(LIMIT, concurrency=count))
        else:
            inbound = Inbound(app)
            Listener(inbound, settings.inbound_host, settings.inbound_port).start()
            while not threading.Event().wait(0.2):
                inbound.sweep()


def fork(what: str, settings: Settings, clock: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.close(0)
    code = 1
    try:
        be(what, settings, clock)
        code = 0
    except BaseException as error:
        print(f"{what}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def main(settings: Settings, clock: Path) -> None:
    App(settings)  # everything that is loaded late
    alive: set[int] = set()
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            verb, _, pid = line.strip().partition(" ")
            if verb not in ("kill", "reap"):
                child = fork(line.strip(), settings, clock)
                alive.add(child)
                print(child, flush=True)
                continue
            # Until it is waited for, its number is nobody else's.
            child, ended = int(pid), False
            if child in alive:
                if verb == "kill":
                    os.kill(child, signal.SIGKILL)
                ended = os.waitpid(child, 0 if verb == "kill" else os.WNOHANG)[0] != 0
            if ended:
                alive.discard(child)
            print("alive" if child in alive else "gone", flush=True)
    finally:
        for child in alive:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])), Path(sys.argv[2]))
