"""`make demo-d1`: the month of the campaign on Cloudflare D1, which is killed too.

workerd, the server that Cloudflare runs Workers on, has the Worker that perdure ships and a D1
database with the journal and the campaign's tables. Its cron POSTs `/cron/tick` to a Python host,
which does all the work; a real cron fires every minute, this one five times a second. The host is
killed with SIGKILL where the month's plan says, and host and workerd at random moments.

The mail server's own log decides. Exit code 0: every touch that should be sent was sent once, none
after a reply, every thread is in the right final state, and the doctor found nothing.
"""

from __future__ import annotations

import http.client
import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from perdure.testing.d1 import Workerd, local_d1
from perdure.testing.local_server import free_port

from .clock import SharedClock
from .conductor import Result
from .crew import Crew, host, warm_up
from .months import Campaign
from .plan import Plan
from .play import arguments, figures, month, play, show
from .postoffice import HOST, PostOffice

PAUSE = 0.2
"""Seconds between two crons."""
WORKERD = 0
"""Stands for workerd among the processes that are killed."""


class HostAndWorkerd(Crew):
    """A Python host, and workerd, which comes back at the same address with the same data."""

    def __init__(self, workerd: Workerd, folder: Path, **order: Any) -> None:
        super().__init__(folder, 1, host, **order)
        self._workerd, self.outages = workerd, 0
        self.pids.append(WORKERD)

    def name(self, pid: int) -> str:
        return "workerd" if pid == WORKERD else f"host {pid}"

    def kill(self, pid: int) -> bool:
        if pid != WORKERD:
            return super().kill(pid)
        with self._changing:
            self._workerd.kill()
            self._workerd.start()
            self.outages += 1
            self.killed += 1
            return True


class OnD1(Campaign):
    """The campaign on D1, driven by nothing but the Worker's cron."""

    pause = (3.0, 6.0)

    def __init__(
        self, workerd: Workerd, plan: Plan, folder: Path, office: PostOffice, clock: SharedClock
    ) -> None:
        super().__init__(plan, folder, office, clock, url=workerd.url())
        self._workerd, self._over = workerd, threading.Event()
        self._host = {"port": free_port(), "secret": secrets.token_hex(16)}
        self.crons: Counter[str] = Counter()

    def staff(self) -> None:
        order = {**self._order, **self._host}
        self.crew = self.mortals = HostAndWorkerd(self._workerd, self._folder, **order)
        self._cron = threading.Thread(target=self._trigger)
        self._cron.start()

    def _trigger(self) -> None:
        url = f"http://{HOST}:{self._host['port']}/cron/tick"
        secret = str(self._host["secret"])
        while not self._over.wait(PAUSE):
            try:
                failed = self._workerd.trigger_cron(tick_url=url, tick_secret=secret, pause=PAUSE)
            except (OSError, http.client.HTTPException):
                self.crons["missed"] += 1
            else:
                self.crons["failed" if failed else "answered"] += 1

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if hasattr(self, "_cron"):
            self._cron.join()
        super().__exit__(*error)


def main(contacts: int = 5, seed: int | None = None, plain: bool = False) -> int:
    """Run the demo. Returns the exit code."""
    return play(_on_d1, contacts, seed, plain=plain)


def _on_d1(on: Console, plan: Plan, folder: Path) -> Result:
    on.print("Starting workerd with D1, a mail server, and a Python host ...\n")
    with local_d1(databases=1) as workerd:
        warm_up()
        months: list[OnD1] = []

        def begin(*parts: Any) -> OnD1:
            months.append(OnD1(workerd, *parts))
            return months[0]

        people = f"{len(plan.contacts)} people"
        title = f"perdure on D1: a month of mail to {people}, host and workerd killed"
        result = month(begin, title, plan, folder / "month", on, patience=240.0)
        crew = months[0].mortals
        more = {
            "problems found by perdure doctor": str(result.unsound),
            "hosts killed": str(result.killed - crew.outages),
            "workerd killed": str(crew.outages),
            "crons answered": str(months[0].crons["answered"]),
        }
        show(on, plan, {"perdure on D1": figures(result) | more})
    return result


if __name__ == "__main__":
    raise SystemExit(main(**arguments("The month of the campaign on Cloudflare D1.")))
